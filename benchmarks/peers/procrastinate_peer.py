"""Procrastinate on psycopg 3; run by the interpreter of its environment.

usage: procrastinate_peer.py install|enqueue|enqueue-many|work URL [COUNT]
"""

from __future__ import annotations

import asyncio
import sys
import time

from procrastinate import App, PsycopgConnector

CONCURRENCY = 200
# The most connections that helped: more workers than that only wait for the server.
POOL = 20

_, verb, url, *rest = sys.argv
app = App(connector=PsycopgConnector(conninfo=url, min_size=POOL, max_size=POOL))


@app.task
async def noop(number: int) -> None:
    """Do nothing."""


def install(_count: int) -> None:
    """Make its tables."""
    app.schema_manager.apply_schema()


def enqueue(count: int) -> None:
    """Print jobs a second, one per transaction."""
    started = time.perf_counter()
    for number in range(count):
        noop.defer(number=number)
    print(count / (time.perf_counter() - started))


def enqueue_many(count: int) -> None:
    """Print jobs a second, all in one call."""
    calls = [{"number": number} for number in range(count)]
    started = time.perf_counter()
    noop.batch_defer(*calls)
    print(count / (time.perf_counter() - started))


async def work() -> None:
    """Run a worker until SIGTERM."""
    async with app.open_async():
        await app.run_worker_async(concurrency=CONCURRENCY)


if __name__ == "__main__":
    if verb == "work":
        asyncio.run(work())
    else:
        verbs = {"install": install, "enqueue": enqueue, "enqueue-many": enqueue_many}
        with app.open():
            verbs[verb](int(rest[0]) if rest else 0)
