"""The checkpoints of a run: what it has earned, each write guarded by its claim; and signals."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db.backends.base.base import BaseDatabaseWrapper

from django_durable.choices import StepKind, StepStatus
from django_durable.store.base import RowLocked, atomic, rows
from django_durable.store.recording import Right


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Hold one checkpoint to write; `value` and `undo_call` are encoded, times in seconds."""

    right: Right
    kind: StepKind
    name: str
    ordinal: int
    status: StepStatus
    value: str | None = None
    error_class: str = ""
    message: str = ""
    took: float = 0.0
    wake_at: datetime | None = None
    delay: float | None = None
    child: UUID | None = None
    tries: int = 0
    undo_name: str | None = None
    undo_call: str | None = None

    @property
    def takes_back(self) -> bool:
        """Tell whether its record says that a step of another job is taken back."""
        return self.kind is StepKind.COMPENSATION and self.status is StepStatus.SUCCEEDED

    def as_params(self) -> dict[str, Any]:
        """Return the parameters of the statement that records one."""
        return {
            "job": self.right[0],
            "epoch": self.right[1],
            "kind": self.kind.value,
            "name": self.name,
            "ordinal": self.ordinal,
            "status": self.status.value,
            "value": self.value,
            "error_class": self.error_class,
            "message": self.message,
            "took": self.took,
            "wake_at": self.wake_at,
            "delay": self.delay,
            "child": self.child,
            "tries": self.tries,
            "undo_name": self.undo_name,
            "undo_call": self.undo_call,
        }

    def as_row(self) -> dict[str, Any]:
        """Return what the statement reads that records several, of which the rest is NULL."""
        given = self.as_params().items()
        row = {name: value for name, value in given if value is not None and value != ""}
        row["job"] = self.right[0].hex
        if self.wake_at is not None:
            row["wake_at"] = self.wake_at.isoformat()
        if self.child is not None:
            row["child"] = self.child.hex
        return row


@dataclass(frozen=True)
class Written:
    """Tell whether the claim stood, whether its cancellation is requested, and what was set.

    Nothing was if the checkpoint is final already: it is not `is_new` then.
    """

    stands: bool
    cancel_requested: bool = False
    wake_at: datetime | None = None
    now: datetime | None = None
    is_new: bool = True


class AlreadyRecorded(Exception):  # noqa: N818 - whoever meets it reads what is recorded
    """An earlier write has arrived, whose answer was lost."""


def record_checkpoints(db: BaseDatabaseWrapper, checkpoints: Sequence[Checkpoint]) -> Written:
    """Record checkpoints of one run, in one commit or the caller's; see `record_for_many`.

    Returns what became of the last.
    """
    return record_for_many(db, checkpoints)[-1]


def record_for_many(db: BaseDatabaseWrapper, checkpoints: Sequence[Checkpoint]) -> list[Written]:
    """Record checkpoints of several runs; say what became of each, in order.

    It is one statement, and one for each compensation that has succeeded. A pending checkpoint is
    completed; a final one is never changed.
    """
    others = [made for made in checkpoints if not made.takes_back]
    written = iter(_record_several(db, others))
    return [_record_one(db, made) if made.takes_back else next(written) for made in checkpoints]


def _record_several(db: BaseDatabaseWrapper, checkpoints: Sequence[Checkpoint]) -> list[Written]:
    if len(checkpoints) <= 1:
        return [_record_one(db, made) for made in checkpoints]
    text = json.dumps([checkpoint.as_row() for checkpoint in checkpoints])
    runs: dict[Right, Written] = {}
    each: dict[tuple[Right, str, str], Written] = {}
    for job, epoch, requested, kind, name, wake_at, now in rows(
        db, "record_checkpoints", checkpoints=text
    ):
        runs[job, epoch] = Written(True, requested, None, now, is_new=False)
        each[(job, epoch), kind, name] = Written(True, requested, wake_at, now)
    lost = Written(False)
    return [
        each.get((made.right, made.kind.value, made.name), runs.get(made.right, lost))
        for made in checkpoints
    ]


def _record_one(db: BaseDatabaseWrapper, checkpoint: Checkpoint) -> Written:
    statement = "record_compensation" if checkpoint.takes_back else "record_checkpoint"
    found = rows(db, statement, **checkpoint.as_params())
    return Written(True, *found[0]) if found else Written(False)


def lock_run(db: BaseDatabaseWrapper, right: Right, *, waits: bool = True) -> Written:
    """Lock the job of a run in the caller's transaction, if its claim stands.

    Unless it waits for whoever has locked it, it raises `RowLocked` for what it does not get.
    """
    found = rows(db, "lock_run" if waits else "try_lock_run", id=right[0], epoch=right[1])
    if found:
        return Written(True, found[0][0], None, found[0][1])
    if not waits:
        raise RowLocked("somebody else has locked the job, or taken it")
    return Written(False)


def read_signal(db: BaseDatabaseWrapper, job: UUID, name: str) -> str | None:
    """Return the latest payload of a signal, encoded, or None when there is none."""
    found = rows(db, "read_signal", id=job, name=name)
    return found[0][0] if found else None


def read_checkpoints(
    db: BaseDatabaseWrapper, jobs: Sequence[UUID]
) -> dict[UUID, list[tuple[Any, ...]]]:
    """Return what is recorded for each of the jobs: kind, name and the other columns of a step.

    Values are encoded. A job that has recorded nothing has an empty list.
    """
    found: dict[UUID, list[tuple[Any, ...]]] = {job: [] for job in jobs}
    for job, *columns in rows(db, "read_checkpoints", ids=list(jobs)):
        found[job].append(tuple(columns))
    return found


def mark_compensated(db: BaseDatabaseWrapper, undo: UUID) -> None:
    """Note on steps, and on the copies that other jobs have, what an undo job has taken back."""
    rows(db, "mark_compensated", undo=undo)


@dataclass(frozen=True)
class Sent:
    """Tell whether a signal reached a job that lives, and which queue got work by it."""

    exists: bool
    delivered: bool = False
    woken_queue: str | None = None


def send_signal(db: BaseDatabaseWrapper, job: UUID, name: str, payload: str) -> Sent:
    """Buffer a signal and wake the job if it is parked for just that; caller's transaction or own.

    The lock on the job comes first, as in a wait: no signal falls between a look and its park.
    """
    with atomic(db):
        found = rows(db, "lock_job", id=job)
        if not found:
            return Sent(False)
        if found[0][0]:
            return Sent(True)
        rows(db, "put_signal", id=job, name=name, payload=payload)
        woken = rows(db, "wake_signalled", id=job, name=name)
    return Sent(True, True, woken[0][0] if woken else None)
