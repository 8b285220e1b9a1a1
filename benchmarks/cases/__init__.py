"""The cases, by the name that selects them; loaded once Django is set up."""

from __future__ import annotations

from benchmarks.bench import Case
from benchmarks.cases import (
    crowds,
    draining,
    enqueueing,
    latency,
    resources,
    timekeeping,
    workflows,
)

CASES: dict[str, Case] = {
    "enqueue": enqueueing.enqueue,
    "enqueue-many": enqueueing.enqueue_many,
    "drain-async": draining.drain_async,
    "drain-def": draining.drain_def,
    "drain-default": draining.drain_default,
    "drain-two-children": draining.drain_two_children,
    "beside-not-due": crowds.not_due,
    "beside-lower-priority": crowds.lower_priority,
    "beside-finished": crowds.finished,
    "beside-other-queue": crowds.other_queue,
    "beside-transaction": crowds.held_transaction,
    "latency": latency.latency,
    "result": latency.result,
    "commits": resources.commits,
    "memory": resources.memory,
    "schedules": timekeeping.idle_schedules,
    "sweep": timekeeping.sweep,
    "aged": timekeeping.aged,
    "workflow-steps": workflows.many,
    "workflow-long": workflows.long,
    "workflow-replay": workflows.replay,
    "workflow-children": workflows.children,
    "workflow-signal": workflows.signal,
}

# One of each kind, for a smoke run.
QUICK = (
    "enqueue",
    "enqueue-many",
    "drain-async",
    "drain-default",
    "beside-not-due",
    "latency",
    "result",
    "commits",
    "memory",
    "workflow-steps",
    "workflow-signal",
)
