"""The job types of the benchmarks: they do nothing, so that what is measured is the way to them."""

from __future__ import annotations

import asyncio
import time

from django_durable import job


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
