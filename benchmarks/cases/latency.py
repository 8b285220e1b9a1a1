"""How soon an idle worker starts a job, and how soon somebody who waits has its result."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Iterator
from statistics import quantiles
from typing import Self

from django.db import transaction

from benchmarks.app import jobs
from benchmarks.bench import Bench
from benchmarks.drains import DEFAULT, Drain
from benchmarks.figures import Figure, Target
from benchmarks.workers import ROOT, WorkerFailed, environment

PAUSE_SECONDS = (0.02, 0.06)
# Longer than a waiter needs to subscribe, shorter than the poll behind the notification.
RUN_SECONDS = 0.15


def latency(bench: Bench) -> Iterator[Figure]:
    """Enqueue single jobs at random moments beside an idle worker.

    From the moment after the commit in the enqueuing process to the first line of the job, by the
    machine's monotonic clock, which all its processes share. The notification is sent after the
    commit, so its cost is within.
    """
    count = bench.size(300, 20)
    database = bench.databases.fresh("latency")
    middles, ends, commits = [], [], []
    with (
        bench.databases.connect(database) as db,
        Drain(bench, database, DEFAULT).worker(db),
    ):
        bench.databases.use(database)
        for _ in range(bench.rounds):
            commits.append(_commit_milliseconds(bench))
            waits = sorted(_start_latencies(count))
            cuts = quantiles(waits, n=100, method="inclusive")
            middles.append(cuts[49])
            ends.append(cuts[98])
    what = f"enqueue-commit to start, idle worker, {count} enqueues"
    beside = {"one commit": commits}
    yield Figure("latency", f"{what}: p50", "ms", middles, beside, Target(value_at_most=3))
    yield Figure("latency", f"{what}: p99", "ms", ends, beside, Target(value_at_most=8))


def _commit_milliseconds(bench: Bench) -> float:
    return 1000 / bench.limit("commits")()


def _start_latencies(count: int) -> list[float]:
    """Return milliseconds from the commit to the start of each of so many jobs."""
    committed: list[int] = []
    made = []
    for number in range(count):
        with transaction.atomic():
            # Callbacks run in order: this one before the job's, which notifies.
            transaction.on_commit(lambda: committed.append(time.monotonic_ns()))
            made.append(jobs.started_at.enqueue(number))
        time.sleep(random.uniform(*PAUSE_SECONDS))  # noqa: S311 - no secret
    pairs = zip(made, committed, strict=True)
    return [(job.result(timeout=30) - commit) / 1e6 for job, commit in pairs]


def result(bench: Bench) -> Iterator[Figure]:
    """Wait in another process for the result of a job that takes a moment.

    From the job's `finished_at`, which is the start of the statement that records it, so the
    commit itself is within, to the return of `result()`.
    """
    count = bench.size(50, 5)
    database = bench.databases.fresh("latency")
    middles, ends, commits = [], [], []
    with (
        bench.databases.connect(database) as db,
        Drain(bench, database, DEFAULT).worker(db),
        Waiter(bench.databases.url(database)) as waiter,
    ):
        bench.databases.use(database)
        waiter.wait_once()
        for _ in range(bench.rounds):
            commits.append(_commit_milliseconds(bench))
            cuts = quantiles([waiter.wait_once() for _ in range(count)], n=100, method="inclusive")
            middles.append(cuts[49])
            ends.append(cuts[98])
    what = f"end of a job to the return of result() in another process, {count} waits"
    beside = {"one commit": commits}
    yield Figure("result", f"{what}: p50", "ms", middles, beside)
    yield Figure("result", f"{what}: p99", "ms", ends, beside, Target(value_at_most=100))


class Waiter:
    """Be a process that waits for one result after another."""

    def __init__(self, url: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.app.waiter"],
            env=environment(url),
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        # It ends with its standard input.
        self._process.communicate()

    def wait_once(self) -> float:
        """Let it wait for one job, and return milliseconds from the job's end."""
        job = jobs.hold_async.enqueue(RUN_SECONDS)
        asked, answers = self._process.stdin, self._process.stdout
        if asked is None or answers is None:
            raise WorkerFailed("the process that waits has no pipes")
        asked.write(f"{job.pk}\n")
        asked.flush()
        returned = answers.readline()
        job.refresh_from_db()
        if not returned or job.finished_at is None:
            raise WorkerFailed("the process that waits for results has ended")
        return (float(returned) - job.finished_at.timestamp()) * 1000
