"""How fast one process makes jobs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from benchmarks.app import jobs
from benchmarks.bench import Bench
from benchmarks.figures import Figure, Target


def enqueue(bench: Bench) -> Iterator[Figure]:
    """Enqueue jobs one by one, each in a transaction of its own."""
    bench.databases.use(bench.databases.fresh("enqueueing"))
    count = bench.size(2000, 200)

    def measure() -> float:
        started = time.perf_counter()
        for number in range(count):
            jobs.noop.enqueue(number)
        return count / (time.perf_counter() - started)

    measure()
    yield bench.compare(
        "enqueue",
        "enqueue(), one per transaction, one process",
        measure,
        "commits",
        target=Target(at_least={"commits": 0.65}),
    )


def enqueue_many(bench: Bench) -> Iterator[Figure]:
    """Enqueue many jobs in one call, which is one commit."""
    bench.databases.use(bench.databases.fresh("enqueueing"))
    count = bench.size(20_000, 2000)

    def measure() -> float:
        calls: list[Any] = [((number,), {}) for number in range(count)]
        started = time.perf_counter()
        jobs.noop.enqueue_many(calls)
        return count / (time.perf_counter() - started)

    measure()
    yield bench.compare(
        "enqueue-many",
        f"enqueue_many() of {count:,}",
        measure,
        "copy",
        target=Target(at_least={"copy": 0.2}),
    )
