"""The same measures of other queues, each run by its own environment on the same server."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import LiteralString

from benchmarks.bench import Bench, Case
from benchmarks.databases import Connection, value
from benchmarks.figures import Figure
from benchmarks.peers import environments
from benchmarks.workers import WorkerFailed, wait_until

WARM_UP = 400
POLL_SECONDS = 0.25


@dataclass(frozen=True)
class Peer:
    """Say how to watch a peer's drain: what is left, its last id, and its window after an id.

    Or a moment, for a peer whose ids don't ascend. `by_default` says what its drain is called with
    the settings that it has by default, where that is measured, too; `workflows` how it runs them,
    if it does, and `children` how it runs those that a parent awaits.
    """

    name: str
    title: str
    how: str
    is_left: LiteralString
    last_id: LiteralString
    window: LiteralString
    by_default: str = ""
    workflows: str = ""
    children: str = ""


ABSURD = Peer(
    "absurd",
    "Absurd",
    "def, 8 clients, batch_size 32",
    "SELECT EXISTS (SELECT FROM absurd.t_jobs WHERE state IN ('pending', 'running', 'sleeping'))",
    "SELECT clock_timestamp()",
    "SELECT count(*) FILTER (WHERE state = 'completed'), extract(epoch FROM"
    " max(completed_at) - min(started_at))::float FROM absurd.r_jobs WHERE created_at > %s",
    workflows="8 clients, batch_size 32",
    children="of 4 clients, batch_size 10, poll_interval 0.05",
)
PEERS = {
    peer.name: peer
    for peer in (
        Peer(
            "procrastinate",
            "Procrastinate",
            "async def, concurrency 200",
            "SELECT EXISTS (SELECT FROM procrastinate_jobs WHERE status IN ('todo', 'doing'))",
            "SELECT coalesce(max(id), 0) FROM procrastinate_jobs",
            "SELECT count(*) FILTER (WHERE type = 'succeeded'), extract(epoch FROM"
            " max(at) FILTER (WHERE type = 'succeeded') - min(at) FILTER (WHERE type = 'started')"
            ")::float FROM procrastinate_events WHERE job_id > %s",
        ),
        Peer(
            "pgqueuer",
            "PgQueuer",
            "async def, asyncpg, uvloop, batch_size 200",
            "SELECT EXISTS (SELECT FROM pgqueuer)",
            "SELECT coalesce(max(job_id), 0) FROM pgqueuer_log",
            "SELECT count(*) FILTER (WHERE status = 'successful'), extract(epoch FROM"
            " max(created) FILTER (WHERE status = 'successful')"
            " - min(created) FILTER (WHERE status = 'picked')"
            ")::float FROM pgqueuer_log WHERE job_id > %s",
            by_default="its default batch_size",
        ),
        ABSURD,
    )
}


def case_of(name: str) -> Case:
    """Return the case that measures a peer."""

    def run(bench: Bench) -> Iterator[Figure]:
        yield from PeerRun(bench, PEERS[name]).figures()

    return run


class PeerRun:
    """Measure one peer, in its own database."""

    def __init__(self, bench: Bench, peer: Peer) -> None:
        self._bench = bench
        self._peer = peer
        self.title = f"{peer.title} {environments.version(peer.name)}"
        bench.say(f"{peer.title}: its environment")
        self._python = environments.make(peer.name)
        self._database = f"peer_{peer.name}"
        self._start_afresh()

    def figures(self) -> Iterator[Figure]:
        """Measure what is measured of the package: enqueueing, a drain, and workflows if any."""
        bench, peer = self._bench, self._peer
        case = f"peer-{peer.name}"
        single, many = bench.size(2000, 200), bench.size(20_000, 1000)
        yield bench.compare(
            case,
            f"{self.title}: enqueue, one per transaction, one process",
            lambda: self._call("enqueue", single),
            "commits",
        )
        yield bench.compare(
            case,
            f"{self.title}: bulk enqueue of {many:,}",
            lambda: self._call("enqueue-many", many),
            "copy",
        )
        yield bench.compare(
            case,
            f"{self.title}: drain of {many:,}: {peer.how}",
            lambda: many / self.seconds("enqueue-many", many, runs=many),
            "claim+complete",
        )
        if peer.by_default:
            yield bench.compare(
                case,
                f"{self.title}: drain of {many:,}: {peer.by_default}",
                lambda: many / self.seconds("enqueue-many", many, many, "work-by-default"),
                "claim+complete",
            )
        if peer.workflows:
            yield from self._workflows(case)

    def _workflows(self, case: str) -> Iterator[Figure]:
        bench, how = self._bench, self._peer.workflows
        count, steps, children = bench.size(500, 40), bench.size(1000, 50), bench.size(200, 10)
        yield bench.compare(
            case,
            f"{self.title}: {count} workflows of 5 no-op steps: {how}",
            lambda: 5 * count / self.seconds("five-steps", count, runs=count),
            "commits",
            unit="steps/s",
        )
        yield bench.compare(
            case,
            f"{self.title}: one workflow of {steps:,} steps: {how}",
            lambda: self.seconds("steps", steps),
            unit="s",
            beside=bench.commits(steps),
        )
        yield bench.compare(
            case,
            f"{self.title}: a parent and {children} awaited children {self._peer.children}",
            lambda: self.seconds("parent", children),
            unit="s",
            beside=bench.commits(children),
        )

    def _start_afresh(self) -> None:
        self._bench.databases.make(self._database)
        self._call("install")

    def _command(self, verb: str) -> list[str | Path]:
        url = self._bench.databases.url(self._database)
        return [self._python, environments.program(self._peer.name), verb, url]

    def _call(self, verb: str, *counts: int) -> float:
        command = [*self._command(verb), *map(str, counts)]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode != 0:
            raise WorkerFailed(f"{self._peer.title} {verb}: {done.stderr[-2000:]}")
        return float(done.stdout) if counts else 0.0

    def seconds(self, verb: str, count: int, runs: int = 1, work: str = "work") -> float:
        """Let its worker run dry, then give it all in one commit, and read the window of `runs`."""
        self._start_afresh()
        with (
            self._bench.databases.connect(self._database) as db,
            subprocess.Popen(self._command(work), stderr=subprocess.DEVNULL) as worker,
        ):
            try:
                self._call(verb, WARM_UP)
                self._wait_until_dry(db, worker)
                last = value(db, self._peer.last_id)
                self._call(verb, count)
                self._wait_until_dry(db, worker)
                row = db.execute(self._peer.window, [last]).fetchone()
            finally:
                worker.terminate()
        if row is None or row[0] != runs:
            raise WorkerFailed(f"{self._peer.title} ran {row and row[0]} of {runs} jobs")
        return float(row[1])

    def _wait_until_dry(self, db: Connection, worker: subprocess.Popen[bytes]) -> None:
        def is_dry() -> bool:
            if worker.poll() is not None:
                raise WorkerFailed(f"{self._peer.title}'s worker ended: {worker.returncode}")
            return not value(db, self._peer.is_left)

        wait_until(is_dry, 600, f"{self._peer.title} has jobs left", POLL_SECONDS)
