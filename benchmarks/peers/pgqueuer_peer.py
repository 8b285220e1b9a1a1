"""PgQueuer at its best: asyncpg, uvloop, batches of 200; run by the interpreter of its environment.

usage: pgqueuer_peer.py install|enqueue|enqueue-many|work|work-by-default URL [COUNT]

Its tables are logged ones, as it makes them when nothing else is asked for.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time

import asyncpg
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries

BATCH = 200


async def install(queries: Queries, _count: int) -> None:
    """Make its tables."""
    await queries.install()


async def enqueue(queries: Queries, count: int) -> None:
    """Print jobs a second, one per transaction on one connection."""
    started = time.perf_counter()
    for number in range(count):
        await queries.enqueue("noop", str(number).encode())
    print(count / (time.perf_counter() - started))


async def enqueue_many(queries: Queries, count: int) -> None:
    """Print jobs a second, all in one call."""
    payloads = [str(number).encode() for number in range(count)]
    started = time.perf_counter()
    await queries.enqueue(["noop"] * count, payloads, [0] * count)
    print(count / (time.perf_counter() - started))


async def work(connection: asyncpg.Connection, **settings: int) -> None:
    """Run a worker until SIGTERM."""
    worker = PgQueuer.from_asyncpg_connection(connection)

    @worker.entrypoint("noop")
    async def noop(job: Job) -> None:
        """Do nothing."""

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.shutdown.set)
    await worker.run(**settings)


async def main(verb: str, url: str, count: int) -> None:
    """Do one verb on the database."""
    connection = await asyncpg.connect(url)
    try:
        if verb == "work":
            await work(connection, batch_size=BATCH)
            return
        if verb == "work-by-default":
            await work(connection)
            return
        verbs = {"install": install, "enqueue": enqueue, "enqueue-many": enqueue_many}
        await verbs[verb](Queries(AsyncpgDriver(connection)), count)
    finally:
        await connection.close()


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 0))
