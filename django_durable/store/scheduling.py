"""The verbs of schedules: look, lock what is due, insert the jobs of ticks, move on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from django.db.backends.base.base import BaseDatabaseWrapper

from django_durable.store.base import rows
from django_durable.store.enqueueing import LOCK_NAMESPACE, Enqueued, NewJob
from django_durable.uuid7 import uuid7

LOCK_DECLARATIONS = 4
# A statement takes so many jobs at most.
BATCH = 2000


@dataclass(frozen=True)
class Tick:
    """Hold the job that a schedule makes for one nominal time."""

    schedule: int
    nominal: datetime
    new: NewJob


class Look(NamedTuple):
    """Tell what a look at the schedules has found.

    `edited`: the rule of one has changed; `wrong`: one is broken; `due_in`: seconds until the
    next one is due, negative if it is already, None if there is none.
    """

    edited: bool
    wrong: bool
    due_in: float | None


def look_at_schedules(db: BaseDatabaseWrapper, names: Sequence[str], ahead: timedelta) -> Look:
    """Find out in one statement of a few index seeks whether there is anything to do.

    Those whose jitter makes them due early are seen if that is so within `ahead`.
    """
    return Look(*rows(db, "look_schedules", names=list(names), ahead=ahead)[0])


class DueSchedule(NamedTuple):
    """Name a schedule that is due, and say how many bytes its arguments have."""

    id: int
    size: int


def lock_due_schedules(
    db: BaseDatabaseWrapper, names: Sequence[str], limit: int
) -> list[DueSchedule]:
    """Lock schedules of these job types that are due, and leave those that others hold.

    In the caller's transaction. What they say is read in a later statement.
    """
    found = rows(db, "lock_due_schedules", names=list(names), limit=limit)
    return [DueSchedule(*row) for row in found]


def insert_ticks(db: BaseDatabaseWrapper, ticks: Sequence[Tick]) -> list[Enqueued | None]:
    """Insert the jobs of ticks, in order; None for one that has its job already.

    A constraint on (schedule, nominal time) decides, whoever else fires the same schedule.
    """
    ids = [uuid7() for _ in ticks]
    made: dict[UUID, Any] = {}
    for start in range(0, len(ticks), BATCH):
        part = slice(start, start + BATCH)
        jobs = [_as_row(job, tick) for job, tick in zip(ids[part], ticks[part], strict=True)]
        made |= {row[0]: row[1:] for row in rows(db, "insert_ticks", jobs=json.dumps(jobs))}
    return [Enqueued(job, True, *made[job]) if job in made else None for job in ids]


def _as_row(job: UUID, tick: Tick) -> dict[str, Any]:
    return {
        **tick.new.as_row(),
        "id": job.hex,
        "schedule_id": tick.schedule,
        "scheduled_for": tick.nominal.isoformat(),
    }


@dataclass(frozen=True)
class Moved:
    """Hold what one look has made of a schedule; None leaves what is there.

    `next_run_at` None is none: the schedule has come to its end.
    """

    id: int
    next_run_at: datetime | None
    last_tick: datetime | None = None
    last_run_at: datetime | None = None
    last_job: UUID | None = None
    skipped: int = 0
    last_skipped_at: datetime | None = None


def move_schedules(db: BaseDatabaseWrapper, moved: Sequence[Moved]) -> None:
    """Write down where locked schedules stand; in the transaction that inserts their jobs."""
    values = json.dumps([vars(move) for move in moved], default=_as_text)
    rows(db, "move_schedules", moved=values)


def _as_text(value: datetime | UUID) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)


def break_schedule(
    db: BaseDatabaseWrapper, schedule: int, why: str, retry: timedelta | None
) -> None:
    """Say why a schedule cannot fire; it is left alone until then, or until somebody edits it.

    With None as `retry` only an edit mends it, or a worker that starts.
    """
    rows(db, "break_schedule", id=schedule, why=why.replace("\x00", "\ufffd"), retry=retry)


def mark_unknown_schedules(db: BaseDatabaseWrapper, why: str, lease: Any) -> None:
    """Say of all schedules whose job type no live worker knows that it is so."""
    rows(db, "mark_unknown_schedules", why=why, lease=lease)


def mend_schedules(db: BaseDatabaseWrapper, names: Sequence[str], why: str) -> int:
    """Let the schedules of these job types fire again that are broken for this reason only."""
    return len(rows(db, "mend_schedules", names=list(names), why=why))


def own_declarations(db: BaseDatabaseWrapper) -> bool:
    """Let no other worker reconcile its declarations until the transaction ends.

    Return False if another one does at the moment.
    """
    found = rows(db, "own_declarations", namespace=LOCK_NAMESPACE + LOCK_DECLARATIONS)
    return bool(found[0][0])
