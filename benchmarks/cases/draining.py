"""How fast one worker gets through jobs that do nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from benchmarks.bench import Bench, Skipped
from benchmarks.drains import ASYNC, DEFAULT, THREADS, Drain, Load
from benchmarks.figures import Figure, Target
from benchmarks.workers import knows


def _drain(bench: Bench, case: str, how: str, load: Load, target: float) -> Iterator[Figure]:
    count = bench.size(20_000, 1000)
    drain = Drain(bench, bench.databases.fresh("draining"), load)
    yield bench.compare(
        case,
        f"drain of {count:,}: {how}",
        lambda: drain.rate(count),
        "claim+complete",
        target=Target(at_least={"claim+complete": target}),
    )


def drain_async(bench: Bench) -> Iterator[Figure]:
    """Drain `async def` jobs with 200 slots."""
    yield from _drain(bench, "drain-async", "async def, --concurrency 200", ASYNC, 0.5)


def drain_def(bench: Bench) -> Iterator[Figure]:
    """Drain plain `def` jobs with 200 slots, each a thread."""
    yield from _drain(bench, "drain-def", "def, --concurrency 200", THREADS, 0.4)


def drain_default(bench: Bench) -> Iterator[Figure]:
    """Drain plain `def` jobs with the default of 10 slots."""
    yield from _drain(bench, "drain-default", "def, the default --concurrency 10", DEFAULT, 0.2)


def drain_two_children(bench: Bench) -> Iterator[Figure]:
    """Drain with two child processes, in turn with one."""
    if not knows("--processes"):
        raise Skipped("this worker command has no --processes")
    count = bench.size(20_000, 1000)
    database = bench.databases.fresh("draining")
    one = Drain(bench, database, ASYNC)
    two = Drain(bench, database, replace(ASYNC, processes=2))
    yield bench.compare(
        "drain-two-children",
        f"drain of {count:,}: async def, --processes 2 --concurrency 200",
        lambda: two.rate(count),
        "claim+complete",
        beside={"one child": lambda: one.rate(count)},
        target=Target(at_least={"one child": 1.3, "claim+complete": 0.65}),
    )
