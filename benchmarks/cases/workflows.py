"""What steps, replays, children and signals cost, beside what a commit costs."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import quantiles
from typing import Any

from django.db import transaction

from benchmarks.app import jobs
from benchmarks.bench import Bench
from benchmarks.cases.peers import ABSURD, PeerRun
from benchmarks.drains import DEFAULT, Drain, Load
from benchmarks.figures import Figure, Target
from benchmarks.workers import wait_until

PAUSE_SECONDS = (0.02, 0.06)


def many(bench: Bench) -> Iterator[Figure]:
    """Let one child of default concurrency run many short workflows, whose steps share commits."""
    count = bench.size(500, 40)
    drain = Drain(bench, bench.databases.fresh("workflows"), Load(jobs.five_steps, jobs.hold, 10))
    yield bench.compare(
        "workflow-steps",
        f"{count} workflows of 5 no-op steps, one child, default concurrency",
        lambda: 5 * drain.rate(count),
        "commits",
        unit="steps/s",
        target=Target(at_least={"commits": 1.0}),
    )


@contextmanager
def _worker(bench: Bench) -> Iterator[None]:
    """Point Django at a database whose worker has just run a workflow."""
    database = bench.databases.fresh("workflows")
    with (
        bench.databases.connect(database) as db,
        Drain(bench, database, DEFAULT).worker(db),
    ):
        bench.databases.use(database)
        jobs.steps.enqueue(2).result(timeout=30)
        yield


def _seconds(job: Any) -> float:
    """Return how long a job took from its start to its end, by the database's clock."""
    job.result(timeout=120)
    job.refresh_from_db()
    return float((job.finished_at - job.started_at).total_seconds())


def long(bench: Bench) -> Iterator[Figure]:
    """Run a workflow of many steps, each a commit of its own, as nothing else runs beside it."""
    count = bench.size(1000, 50)
    values, commits, short = [], [], []
    with _worker(bench):
        for _ in range(bench.rounds):
            commits.append(count / bench.limit("commits")())
            short.append(_seconds(jobs.steps.enqueue(count // 10)))
            values.append(_seconds(jobs.steps.enqueue(count)))
    what = f"one workflow of {count:,} steps"
    at_most = Target(at_most={f"{count:,} commits": 2.2})
    yield Figure("workflow-long", what, "s", values, {f"{count:,} commits": commits}, at_most)
    tenth = f"{count // 10} steps"
    yield Figure("workflow-long", what, "s", values, {tenth: short}, Target(at_most={tenth: 12.0}))


def replay(bench: Bench) -> Iterator[Figure]:
    """Run a workflow again that has many steps recorded.

    From the claim to the record of its first new checkpoint, by the database's clock.
    """
    count = bench.size(1000, 50)
    with _worker(bench):
        values = [
            1000 * jobs.replay_steps.enqueue(count).result(timeout=120) for _ in range(bench.rounds)
        ]
    what = f"replay of {count:,} recorded steps, to the record of the first new one"
    yield Figure("workflow-replay", what, "ms", values, target=Target(value_at_most=100))


def children(bench: Bench) -> Iterator[Figure]:
    """Run a parent that starts many children and awaits them all; where Absurd runs, so does its.

    Its worker is up for its own measure only, and polls for nothing while ours is at work.
    """
    count = bench.size(200, 10)
    beside, target = bench.commits(count), None
    if ABSURD.name in bench.peers:
        absurd = PeerRun(bench, ABSURD)
        beside[absurd.title] = lambda: absurd.seconds("parent", count)
        target = Target(at_most={absurd.title: 0.5})
    with _worker(bench):
        yield bench.compare(
            "workflow-children",
            f"a parent and {count} awaited children",
            lambda: _seconds(jobs.parent.enqueue(count)),
            unit="s",
            beside=beside,
            target=target,
        )


def signal(bench: Bench) -> Iterator[Figure]:
    """Send signals to parked workflows beside an idle worker.

    From the moment after the commit in the sending process to the line after the wait.
    """
    count = bench.size(300, 20)
    middles, ends = [], []
    with _worker(bench):
        for _ in range(bench.rounds):
            waits = [_resume_milliseconds() for _ in range(count)]
            cuts = quantiles(waits, n=100, method="inclusive")
            middles.append(cuts[49])
            ends.append(cuts[98])
    what = f"signal committed to workflow resumed, idle worker, {count} signals"
    yield Figure("workflow-signal", f"{what}: p50", "ms", middles, target=Target(10))
    yield Figure("workflow-signal", f"{what}: p99", "ms", ends, target=Target(30))


def _resume_milliseconds() -> float:
    job = jobs.resumed_at.enqueue()

    def is_parked() -> bool:
        job.refresh_from_db(fields=["status"])
        return bool(job.status == job.Status.WAITING)

    wait_until(is_parked, 30, "the workflow has not parked", 0.005)
    time.sleep(random.uniform(*PAUSE_SECONDS))  # noqa: S311 - no secret
    committed: list[int] = []
    with transaction.atomic():
        # Callbacks run in order: this one before the signal's, which notifies.
        transaction.on_commit(lambda: committed.append(time.monotonic_ns()))
        job.signal("go")
    return float((job.result(timeout=30) - committed[0]) / 1e6)
