"""The verbs of a claim's end: record, reject, give back, rescue; and the renewal of its lease.

Each is guarded by (id, epoch): no row found means that the claim is lost, or that an earlier
write of the same end did arrive and only its answer was lost; `standing` tells which.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from django.db.backends.base.base import BaseDatabaseWrapper

from django_durable import faults
from django_durable.choices import FINISHED, AttemptOutcome, DeathReason, JobStatus
from django_durable.conf import conf
from django_durable.errortext import ErrorText
from django_durable.store.base import (
    Locked,
    RowLocked,
    atomic,
    bear_undos,
    ending,
    literal,
    lock_with_waiters,
    log_event,
    quoted,
    rows,
    settle_trees,
    wait_for_locks,
    wake_waiters,
)
from django_durable.store.sweeping import sweep_these

Right = tuple[UUID, int]
NOTHING = timedelta(0)


@dataclass(frozen=True)
class Keep:
    """Say how long ended jobs are kept: by job type where it differs from the settings."""

    completed: timedelta | None
    dead: timedelta | None
    completed_by_name: Mapping[str, timedelta | None]
    dead_by_name: Mapping[str, timedelta | None]

    def params(self) -> dict[str, Any]:
        """Return the parameters of the statements that end jobs."""
        return {
            "default_keep_completed": self.completed,
            "default_keep_dead": self.dead,
            "keep_completed": _as_json(self.completed_by_name),
            "keep_dead": _as_json(self.dead_by_name),
        }


def _as_json(by_name: Mapping[str, timedelta | None]) -> str:
    return json.dumps(
        {
            name: None if keep is None else f"{keep.total_seconds()} seconds"
            for name, keep in by_name.items()
        }
    )


class Success(NamedTuple):
    """Hold the result of one claim, encoded."""

    right: Right
    result: str
    keep: timedelta | None


@dataclass(frozen=True)
class Failure:
    """Hold how one claim failed; `delay` is the wait before the next attempt."""

    right: Right
    error: ErrorText
    outcome: AttemptOutcome = AttemptOutcome.FAILED
    retryable: bool = True
    delay: timedelta = timedelta(0)
    reason: DeathReason = DeathReason.EXHAUSTED
    cancel: bool = False
    cancel_reason: str = ""


@dataclass(frozen=True)
class Ended:
    """Tell what became of one claim."""

    id: UUID
    epoch: int
    name: str
    queue_name: str
    attempt: int
    status: JobStatus
    worker: str
    claimed_at: datetime
    run_after: datetime
    now: datetime
    cancel_reason: str


@dataclass(frozen=True)
class Recorded:
    """Tell what a recording did: what succeeded, what failed, and who got work by it."""

    successes: tuple[Success, ...] = ()
    failed: tuple[Ended, ...] = ()
    woken_queues: frozenset[str] = frozenset()

    @property
    def succeeded(self) -> frozenset[UUID]:
        """Return the ids of the jobs that succeeded."""
        return frozenset(success.right[0] for success in self.successes)


def record_successes(db: BaseDatabaseWrapper, successes: Sequence[Success]) -> Recorded:
    """Record results in batches: one commit for the lone jobs, another for those with company.

    A crash between the two leaves the second batch RUNNING, for the caller to record again. What is
    not kept at all is deleted at once, or by a sweep where a crash comes in between.
    """
    faults.reach("before_record")
    done, rest = _update_succeeded(db, successes, alone=True)
    queues: set[str] = set()
    if rest:
        others, queues = ending(db, lambda: _end_awaited(db, rest))
        done += others
    unwanted = [success.right[0] for success in successes if success.keep == NOTHING]
    if unwanted:
        sweep_these(db, unwanted)
    faults.reach("after_record")
    return Recorded(tuple(done), (), frozenset(queues))


def _end_awaited(
    db: BaseDatabaseWrapper, successes: Sequence[Success]
) -> tuple[list[Success], set[str]]:
    locked = lock_with_waiters(db, [success.right[0] for success in successes])
    done, _missing = _update_succeeded(db, successes, alone=False)
    ended = [success.right[0] for success in done]
    queues = wake_waiters(db, ended, locked)
    settle_trees(db, locked.roots_of(ended))
    return done, queues


def _keep_text(keep: timedelta | None) -> str:
    return "NULL" if keep is None else str(keep.total_seconds())


def _update_succeeded(
    db: BaseDatabaseWrapper, successes: Sequence[Success], *, alone: bool
) -> tuple[list[Success], list[Success]]:
    """Write what is still claimed; return what that was, and what it was not."""
    ((count, places),) = rows(
        db,
        "record_success",
        alone=alone,
        drop=conf.drop_completed_payloads,
        # As literals: their adaptation, value by value, would be half the cost of the verb.
        ids=literal([success.right[0].hex for success in successes]),
        epochs=literal([str(success.right[1]) for success in successes]),
        results=literal([quoted(success.result) for success in successes]),
        keeps=literal([_keep_text(success.keep) for success in successes]),
    )
    if count == len(successes):
        return list(successes), []
    written = set(places or [])
    done = [success for place, success in enumerate(successes, 1) if place in written]
    missing = [success for place, success in enumerate(successes, 1) if place not in written]
    return done, missing


def record_failure(db: BaseDatabaseWrapper, failure: Failure, keep: Keep) -> Recorded:
    """Record one failed, timed-out or cancelled attempt, in one commit.

    The job becomes READY for its next attempt, DEAD with its dead letter, or CANCELLED (where
    that was requested meanwhile, or `failure.cancel`). Nothing found: see the module's text.
    """

    def record() -> Recorded:
        locked = lock_with_waiters(db, [failure.right[0]])
        found = rows(
            db,
            "record_failure",
            id=failure.right[0],
            epoch=failure.right[1],
            outcome=failure.outcome.value,
            retryable=failure.retryable,
            delay=failure.delay,
            reason=failure.reason.value,
            cancel=failure.cancel,
            cancel_reason=failure.cancel_reason,
            **asdict(failure.error),
            **keep.params(),
        )
        return _after_failure(db, found, locked)

    faults.reach("before_record")
    recorded = ending(db, record)
    faults.reach("after_record")
    return recorded


def rescue(
    db: BaseDatabaseWrapper,
    keep: Keep,
    *,
    claimers: Sequence[UUID] | None = None,
    why: str = "the lease of the worker {worker} lapsed",
    limit: int = 100,
    grace: timedelta = timedelta(0),
) -> Recorded:
    """Record attempts whose lease has lapsed as lost; or, with `claimers`, all that those hold.

    Why they are lost is half a sentence for people, in which `{worker}` stands for its name.
    The jobs are READY again in their old place, DEAD when it was their last attempt, or CANCELLED
    where that was requested. Waits for no lock: what somebody else is writing, or whose waiter
    he is writing, is left; call again until fewer than `limit` come back. Nothing has lapsed for
    `grace` after the server's start, since nobody could renew a lease while it was away.
    """
    lost = {"claimers": None if claimers is None else list(claimers), "grace": grace}
    with atomic(db):
        locked = Locked.of(rows(db, "lock_lost", limit=limit, **lost))
        if not locked:
            return Recorded()
        found = rows(
            db,
            "rescue",
            ids=list(locked),
            outcome=AttemptOutcome.LOST.value,
            retryable=True,
            delay=None,
            reason=DeathReason.LOST.value,
            cancel=False,
            cancel_reason="",
            error_class="LeaseLost",
            message=f"{why} before the attempt ended",
            traceback="",
            **lost,
            **keep.params(),
        )
        return _after_failure(db, found, locked)


def _after_failure(
    db: BaseDatabaseWrapper, found: list[tuple[Any, ...]], locked: Locked
) -> Recorded:
    ended = tuple(_as_ended(*row) for row in found)
    final = [end.id for end in ended if end.status is not JobStatus.READY]
    undoing = bear_undos(db, final)
    queues = undoing | wake_waiters(db, final, locked)
    # What has an undo job now is alone no more.
    settle_trees(db, locked.roots_of(final) | (set(final) if undoing else set()))
    queues |= {end.queue_name for end in ended if end.status is JobStatus.READY}
    return Recorded((), ended, frozenset(queues))


def _as_ended(
    job: UUID,
    epoch: int,
    name: str,
    queue_name: str,
    attempt: int,
    status: str,
    worker: str | None,
    *rest: Any,
) -> Ended:
    return Ended(job, epoch, name, queue_name, attempt, JobStatus(status), worker or "", *rest)


@dataclass(frozen=True)
class Released:
    """Name a claim that was taken back, and what became of its job."""

    id: UUID
    epoch: int
    status: JobStatus
    name: str
    queue_name: str


def release(
    db: BaseDatabaseWrapper,
    rights: Sequence[Right],
    *,
    keep: Keep,
    delay: timedelta | None = None,
    rejected: bool = False,
    claimer: UUID | None = None,
    held: Sequence[Right] = (),
) -> tuple[Released, ...]:
    """Take claims back without counting an attempt: a rejection, or a worker that stops.

    With `claimer`, also those that stand under it and are not in `held`: what a claim took whose
    answer was lost. Without `delay` the jobs are back in their old place. Those whose cancellation
    was requested end CANCELLED, in a second commit; a crash before it leaves them RUNNING, for
    the caller to release again.
    """
    whose = {
        "ids": [right[0] for right in rights],
        "epochs": [right[1] for right in rights],
        "claimer": claimer,
        "held_ids": [right[0] for right in held],
        "held_epochs": [right[1] for right in held],
    }
    found = rows(
        db,
        "give_back",
        delay=delay,
        rejections=1 if rejected else 0,
        event=log_event("rejected" if rejected else "handed_back"),
        **whose,
    )
    back = [Released(row[0], row[1], JobStatus.READY, *row[2:]) for row in found]
    if claimer is None and len(back) == len(rights):
        return tuple(back)

    def end_requested() -> list[Released]:
        locked = Locked.of(rows(db, "lock_requested", **whose))
        if not locked:
            return []
        ended = rows(
            db,
            "cancel_claimed",
            locked=list(locked),
            rejections=1 if rejected else 0,
            keep_completed=keep.params()["keep_completed"],
            default_keep_completed=keep.completed,
            **whose,
        )
        final = [row[0] for row in ended]
        undoing = bear_undos(db, final)
        wake_waiters(db, final, locked)
        settle_trees(db, locked.roots_of(final) | (set(final) if undoing else set()))
        return [Released(row[0], row[1], JobStatus.CANCELLED, *row[2:]) for row in ended]

    return (*back, *ending(db, end_requested))


def renew(db: BaseDatabaseWrapper, rights: Sequence[Right], lease: timedelta) -> dict[UUID, bool]:
    """Renew the listed claims; tell for each renewed id whether its cancellation is requested.

    One that is missing is lost, or was being written at that moment: ask `standing`.
    """
    return dict(
        rows(
            db,
            "renew",
            ids=[right[0] for right in rights],
            epochs=[right[1] for right in rights],
            lease=lease,
        )
    )


def renew_held(
    db: BaseDatabaseWrapper, right: Right, lease: timedelta, patience: timedelta
) -> None:
    """Renew a claim whose row somebody has locked, and wait so long for that.

    Whoever waits for a row has it before a rescue, which waits for none, even if the lease has
    lapsed by then.
    """
    with suppress(RowLocked), atomic(db):
        wait_for_locks(db, patience)
        rows(db, "renew_held", id=right[0], epoch=right[1], lease=lease)


def locked_by_others(
    db: BaseDatabaseWrapper, ids: Sequence[UUID], *, with_company: bool = True
) -> set[UUID]:
    """Return those of the jobs whose end would have to wait for somebody's transaction.

    Or, without company, what is written of them alone.
    """
    if not ids:
        return set()
    return {row[0] for row in rows(db, "locked_by_others", ids=list(ids), company=with_company)}


def show_progress(db: BaseDatabaseWrapper, right: Right, progress: str) -> bool | None:
    """Write the progress (JSON text) of a run; None when its claim is lost.

    Otherwise: is its cancellation requested?
    """
    found = rows(db, "show_progress", id=right[0], epoch=right[1], progress=progress)
    return bool(found[0][0]) if found else None


@dataclass(frozen=True)
class Standing:
    """Tell how a job stands now; `lost` says that its latest attempt was recorded as lost."""

    epoch: int
    status: JobStatus
    cancel_requested: bool
    lost: bool

    def holds(self, epoch: int) -> bool:
        """Tell whether the claim of this epoch still has its job."""
        return self.epoch == epoch and self.status is JobStatus.RUNNING

    def left_by(self, epoch: int) -> bool:
        """Tell whether the claim of this epoch wrote how it ended, and no rescue in its place.

        The job may wait for another attempt; what the write said, its rows tell.
        """
        return self.epoch == epoch and self.status is not JobStatus.RUNNING and not self.lost

    def ended_by(self, epoch: int) -> bool:
        """Tell whether the claim of this epoch has ended its job, and not a rescue in its place."""
        return self.left_by(epoch) and self.status in FINISHED


def standing(db: BaseDatabaseWrapper, ids: Sequence[UUID]) -> dict[UUID, Standing]:
    """Return how the listed jobs stand; one that is missing has been deleted."""
    return {
        row[0]: Standing(row[1], JobStatus(row[2]), *row[3:])
        for row in rows(db, "standing", ids=list(ids))
    }
