"""The job types of the benchmarks: they do nothing, so that what is measured is the way to them."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta

from django_durable import Backoff, JobContext, RetryJob, job, workflow

AT_ONCE = Backoff(initial=timedelta(0), jitter=0.0)


@job
async def noop_async(number: int) -> None:
    """Do nothing, on the event loop."""


@job
def noop(number: int) -> None:
    """Do nothing, in a thread."""


@job
def started_at(number: int) -> int:
    """Return when the function started, in nanoseconds of the machine's one monotonic clock."""
    return time.monotonic_ns()


@job
async def hold_async(seconds: float) -> None:
    """Keep a slot for some time."""
    await asyncio.sleep(seconds)


@job
def hold(seconds: float) -> None:
    """Keep a slot, and its thread, for some time."""
    time.sleep(seconds)


@workflow
def steps(context: JobContext, count: int) -> None:
    """Do so many steps that do nothing."""
    for number in range(count):
        context.step(f"step-{number}", nothing)


@workflow
def five_steps(context: JobContext, number: int) -> None:
    """Do five of them."""
    steps.func(context, 5)


def nothing() -> None:
    """Do nothing."""


@workflow(backoff=AT_ONCE)
def replay_steps(context: JobContext, count: int) -> float:
    """Fail after so many steps; return how many seconds the second attempt took to come there."""
    steps.func(context, count)
    if context.attempt == 1:
        raise RetryJob("now the replay")
    return (context.now("first new one") - context.claim.claimed_at).total_seconds()


@workflow
def child(context: JobContext, number: int) -> int:
    """Return the argument."""
    return number


@workflow
def parent(context: JobContext, count: int) -> int:
    """Await so many children."""
    calls = [((number,), {}) for number in range(count)]
    return sum(context.gather(context.start_many("child", child, calls)))


@workflow
def resumed_at(context: JobContext) -> int:
    """Wait for a signal; return when the function went on, by the machine's monotonic clock."""
    context.wait_for_signal("go")
    return time.monotonic_ns()
