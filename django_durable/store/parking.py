"""The park of a run that waits: for the end of other jobs, for a moment, or for either."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from enum import Enum
from uuid import UUID

from django.db import transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from django_durable.choices import StepKind
from django_durable.store.base import atomic, log_event, rows
from django_durable.store.checkpoints import (
    AlreadyRecorded,
    Checkpoint,
    read_signal,
    record_checkpoints,
)
from django_durable.store.recording import Right

# So many of the awaited jobs are named in the history of the waiter.
NAMED = 3


class Parked(Enum):
    """Tell what a park came to."""

    PARKED = "parked"
    # All jobs that it would wait for have ended, or the signal has come: go on without parking.
    READY = "ready"
    # The claim is lost, or the cancellation of the job requested: `standing` tells which.
    REFUSED = "refused"


def hold_awaited(db: BaseDatabaseWrapper, waiter: UUID, awaited: Sequence[UUID]) -> set[UUID]:
    """Let jobs of other trees be kept for as long as the waiter lives; return those that are.

    What reads as gone already is not. The locks decide between this and a sweep, a deletion, or an
    enqueue that finds the key of a job free: whoever comes second sees the first.
    """
    held = {row[0] for row in rows(db, "find_held", waiter=waiter, ids=list(awaited))}
    rest = [job for job in awaited if job not in held]
    if rest:
        with atomic(db):
            rows(db, "lock_to_hold", ids=rest)
            held |= {row[0] for row in rows(db, "hold_awaited", waiter=waiter, ids=rest)}
    return held


def park(
    db: BaseDatabaseWrapper,
    right: Right,
    *,
    awaited: Sequence[UUID] = (),
    wake_at: datetime | None = None,
    hold_key: bool = False,
    signal: str | None = None,
    checkpoint: Checkpoint | None = None,
) -> Parked:
    """Park a run until all awaited jobs have ended, the signal comes, or `wake_at`; one commit.

    The awaited rows are locked first, with the run's own, and read in a later statement: an
    ending that comes before is seen, one that comes after sees the await rows. `checkpoint` is
    recorded in the same commit, and its moment wakes the run, if that comes before `wake_at`;
    `signal` is the name that may wake it besides: beside awaited jobs it is looked for here, else
    the caller has done so under the lock of the job.
    """
    with atomic(db):
        if awaited:
            rows(db, "lock_jobs", ids=[*awaited, right[0]])
            if signal is not None and read_signal(db, right[0], signal) is not None:
                return Parked.READY
        if checkpoint is not None:
            recorded = record_checkpoints(db, [checkpoint])
            if not recorded.stands:
                return Parked.REFUSED
            if not recorded.is_new:
                raise AlreadyRecorded
            wake_at = min(filter(None, [wake_at, recorded.wake_at]), default=None)
        if awaited:
            started = rows(db, "start_awaits", waiter=right[0], ids=list(awaited))
            if not started:
                return Parked.READY
            rows(db, "mark_awaited", ids=[row[0] for row in started])
        elif wake_at is None and signal is None:
            # It would wait for ever. What it was to wait for has come to its end unheard.
            raise ValueError("a park has to wait for something")
        parked = rows(
            db,
            "park",
            id=right[0],
            epoch=right[1],
            wake_at=wake_at,
            hold_key=hold_key,
            signal=signal,
            event=_wait_event(awaited, checkpoint),
        )
        if not parked:
            transaction.set_rollback(True, using=db.alias)
            return Parked.REFUSED
    return Parked.PARKED


def _wait_event(awaited: Sequence[UUID], checkpoint: Checkpoint | None) -> str | None:
    """Return what no checkpoint will tell of the wait, or None."""
    if checkpoint is not None and checkpoint.kind is StepKind.STEP:
        step, error = checkpoint.name, checkpoint.error_class
        return log_event("waiting", step=step, error=error, tries=checkpoint.tries)
    if not awaited:
        return None
    named = [str(job) for job in awaited[:NAMED]]
    return log_event("waiting", jobs=named, count=len(awaited))
