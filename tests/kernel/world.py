"""What the tests of the kernel make jobs, owners and claims with, and what must hold after all."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from django.db import connection

from django_durable import store
from django_durable.choices import OnDuplicate
from django_durable.errortext import ErrorText
from django_durable.models import Job

LEASE = timedelta(seconds=30)
NOW = timedelta(0)
WEEK = timedelta(days=7)
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
NEVER = datetime(2100, 1, 1, tzinfo=UTC)
KEEP = store.Keep(WEEK, WEEK, {}, {})
ERROR = ErrorText("ValueError", "it broke", "Traceback ...")

TABLES = (
    *("await", "hold", "attempt", "deadletter", "queue", "start", "worker", "step", "signal"),
    "job",
)


def empty_tables() -> None:
    """Delete every row, which is quicker than TRUNCATE for a few."""
    with connection.cursor() as cursor:
        cursor.execute("".join(f"DELETE FROM durable_{table};" for table in TABLES))


def new_job(name: str = "work", **changes: Any) -> store.NewJob:
    values: dict[str, Any] = {
        "name": name,
        "queue_name": "default",
        "requires": None,
        "priority": 0,
        "args": "[]",
        "kwargs": "{}",
        "metadata": {},
        "options": {},
        "max_attempts": 3,
        "run_after": None,
        "delay": NOW,
        "idempotency_key": None,
        "on_duplicate": OnDuplicate.RETURN_EXISTING,
        "concurrency_key": None,
    }
    return store.NewJob(**(values | changes))


def enqueue(name: str = "work", **changes: Any) -> UUID:
    return store.enqueue(store.connection(), new_job(name, **changes)).id


def owner(worker: str = "worker", lease: timedelta = LEASE) -> store.Owner:
    return store.Owner(worker, uuid.uuid4(), lease)


def claims(
    *names: str, by: store.Owner | None = None, limits: dict[str, int] | None = None, **scope: Any
) -> store.Claims:
    """Return a claimer of these job types that has looked once."""
    served = store.Scope(frozenset(names or ["work"]), limits=limits or {}, **scope)
    made = store.Claims(served, by or owner())
    made.look(store.connection())
    return made


def claim(*names: str, slots: int = 10, by: store.Owner | None = None) -> list[store.Claim]:
    return claims(*names, by=by).claim(store.connection(), slots)


def take(claimer: store.Claims, slots: int = 100) -> list[store.Claim]:
    """Look, and claim."""
    claimer.look(store.connection())
    return claimer.claim(store.connection(), slots)


def advance(step: timedelta) -> None:
    """Move the clock of this connection on."""
    db = store.connection()
    db.durable_clock_offset = store.base.clock_offset(db) + step  # type: ignore[attr-defined]


def running(name: str = "work", by: store.Owner | None = None, **changes: Any) -> tuple[UUID, int]:
    """Make a job that runs, and return the right to write its end."""
    job_id = enqueue(name, **changes)
    taken = {made.id: made for made in claim(name, slots=100, by=by)}
    return (job_id, taken[job_id].epoch)


def waiting(
    awaited: Sequence[UUID], name: str = "parent", wake_at: datetime | None = None, **changes: Any
) -> UUID:
    """Make a job that waits for these jobs."""
    right = running(name, **changes)
    parked = store.park(store.connection(), right, awaited=awaited, wake_at=wake_at)
    assert parked is store.Parked.PARKED
    return right[0]


def success(right: store.Right, result: str = "null") -> store.Success:
    return store.Success(right, result, WEEK)


def failure(right: store.Right, **changes: Any) -> store.Failure:
    return store.Failure(right, ERROR, **changes)


def complete(*rights: store.Right) -> store.Recorded:
    return store.record_successes(store.connection(), [success(right) for right in rights])


def cancel(*ids: UUID, tree: bool = True) -> Any:
    # The reason is what a law knows a cancel of whole trees by.
    reason = "told to" if tree else "it alone"
    return store.cancel(store.connection(), ids, reason=reason, tree=tree, keep=KEEP)


def lapse(*ids: UUID) -> None:
    """Let the leases of these jobs end in the past."""
    Job.all_objects.filter(pk__in=ids).update(lease_until=LONG_AGO)


def job(job_id: UUID) -> Job:
    return Job.all_objects.get(pk=job_id)


def statuses(ids: Iterable[UUID]) -> list[str]:
    wanted = list(ids)
    found = dict(Job.all_objects.filter(pk__in=wanted).values_list("pk", "status"))
    return [found[job_id] for job_id in wanted]


# Each query brings what must never be there.
LAWS = {
    "a tree has ended and is kept for ever, or lives and is not": """
        SELECT r.id FROM durable_job AS r
        WHERE r.parent_id IS NULL AND (r.kept_until IS NULL) <> (r.finished_at IS NULL OR EXISTS (
            SELECT FROM durable_job AS m
            WHERE m.root_id = r.id AND m.parent_id IS NOT NULL AND m.finished_at IS NULL))""",
    "a job awaits one of another tree that is not kept for it": """
        SELECT a.id FROM durable_await AS a JOIN durable_job AS w ON w.id = a.waiter_id
        JOIN durable_job AS j ON j.id = a.awaited_id
        LEFT JOIN durable_hold AS h ON h.waiter_id = w.id AND h.awaited_id = j.root_id
        WHERE w.root_id <> j.root_id AND h.id IS NULL""",
    "a job waits for nothing and for no moment, for ever": """
        SELECT id FROM durable_job AS j
        WHERE status = 'WAITING' AND due_at IS NULL AND waits_for IS NULL
        AND NOT EXISTS (SELECT FROM durable_await AS a WHERE a.waiter_id = j.id)""",
    "a job waits for a signal that is there": """
        SELECT j.id FROM durable_job AS j JOIN durable_signal AS s ON s.job_id = j.id
        WHERE j.status = 'WAITING' AND s.name = j.waits_for""",
    "a job waits for one that has ended": """
        SELECT a.id FROM durable_await AS a JOIN durable_job AS j ON j.id = a.awaited_id
        WHERE j.finished_at IS NOT NULL""",
    "a job waits that is not parked": """
        SELECT a.id FROM durable_await AS a JOIN durable_job AS j ON j.id = a.waiter_id
        WHERE j.status <> 'WAITING'""",
    "an awaited job would end without a look at who waits": """
        SELECT a.id FROM durable_await AS a JOIN durable_job AS j ON j.id = a.awaited_id
        WHERE NOT j.awaited""",
    "a dead job has no dead letter, or a living one has one": """
        SELECT j.id FROM durable_job AS j LEFT JOIN durable_deadletter AS d ON d.job_id = j.id
        WHERE (j.status = 'DEAD') <> (d.id IS NOT NULL)""",
    "a dead letter was replayed and names no new job, or the other way round": """
        SELECT id FROM durable_deadletter
        WHERE (replayed_at IS NULL) <> (replayed_as_id IS NULL)""",
    "a job holds its key without running or having parked with it": """
        SELECT id FROM durable_job WHERE key_held
        AND (concurrency_key IS NULL OR NOT (status = 'RUNNING'
        OR status IN ('READY', 'WAITING') AND resumed))""",
    "a job with a key runs without holding it": """
        SELECT id FROM durable_job
        WHERE status = 'RUNNING' AND concurrency_key IS NOT NULL AND NOT key_held""",
    "a queue runs more than it may": """
        SELECT q.name FROM durable_queue AS q WHERE max_running < (
            SELECT count(*) FROM durable_job WHERE queue_name = q.name AND status = 'RUNNING')""",
    "an attempt is recorded that was never made": """
        SELECT a.id FROM durable_attempt AS a JOIN durable_job AS j ON j.id = a.job_id
        WHERE a.number > j.attempt""",
    "a child outlives the cancellation of its tree": """
        SELECT c.id FROM durable_job AS c JOIN durable_job AS p ON p.id = c.parent_id
        WHERE c.finished_at IS NULL AND c.cancel_requested_at IS NULL AND p.status = 'CANCELLED'
        AND p.cancel_reason = 'told to' AND NOT c.metadata ? 'undo'""",
}


BREACHES = " UNION ALL ".join(
    f"SELECT '{law}' WHERE EXISTS ({query})" for law, query in LAWS.items()
)


def assert_laws() -> None:
    """Ask the database for every breach of what must hold between two transactions."""
    with connection.cursor() as cursor:
        cursor.execute(BREACHES)
        breaches = [law for (law,) in cursor.fetchall()]
    assert not breaches, breaches


def key_load(key: str) -> int:
    """Count the jobs that run, or are parked, under a concurrency key."""
    return Job.all_objects.filter(concurrency_key=key, key_held=True).count()
