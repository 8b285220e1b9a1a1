"""The verbs of retention: delete what is kept no longer, tree by tree, a batch a transaction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from django.db import IntegrityError
from django.db.backends.base.base import BaseDatabaseWrapper

from django_durable.choices import FINISHED
from django_durable.store.base import atomic, rows
from django_durable.store.enqueueing import LOCK_NAMESPACE

LOCK_SWEEP = 5
LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass
class Position:
    """Remember where a sweep stands, so that what it had to leave does not hold it up.

    It goes through the statuses one after the other, each from the longest gone on. `left` are
    the roots that it has passed.
    """

    place: int = 0
    after: datetime = LONG_AGO
    left: list[UUID] = field(default_factory=list)

    @property
    def status(self) -> str:
        """Return the status whose turn it is."""
        return FINISHED[self.place].value

    def advance(self, found: Sequence[tuple[Any, ...]], gone: set[UUID], limit: int) -> bool:
        """Move on from the roots just found; return False when all statuses have been seen."""
        if len(found) < limit:
            self.place, self.after, self.left = (self.place + 1) % len(FINISHED), LONG_AGO, []
            return self.place != 0
        if found[-1][1] > self.after:
            # Those that were left before that moment are not found again.
            self.after, self.left = found[-1][1], []
        self.left += [root for root, kept_until in found if root not in gone]
        return True


@dataclass(frozen=True)
class Swept:
    """Tell how many jobs a batch has deleted, and whether the sweep has more to look at."""

    deleted: int
    more: bool


def sweep(
    db: BaseDatabaseWrapper, position: Position, *, limit: int = 300, alone: bool = True
) -> Swept:
    """Delete up to `limit` trees whose time is over, in one transaction.

    With `alone` only one sweeper works at a time; the others find nothing to do. Waits for no lock
    and takes no tree that somebody holds (a replay, a job that begins to await a member) or that a
    foreign key of a user's table points to. A crash deletes nothing of the batch.
    """
    with atomic(db):
        if alone and not rows(db, "try_sweep", namespace=LOCK_NAMESPACE + LOCK_SWEEP)[0][0]:
            return Swept(0, more=False)
        found = _lock_gone(db, position.status, position.after, limit, passed=position.left)
        gone = _delete_unheld(db, [row[0] for row in found])
    return Swept(len(gone), position.advance(found, gone, limit))


def sweep_these(db: BaseDatabaseWrapper, ids: Sequence[UUID]) -> None:
    """Delete those of these successful roots whose time is over already."""
    with atomic(db):
        found = _lock_gone(db, "SUCCESSFUL", LONG_AGO, len(ids), only=ids)
        _delete_locked(db, [row[0] for row in found])


def count_gone(db: BaseDatabaseWrapper) -> int:
    """Count the jobs that a sweep would delete."""
    number: int = rows(db, "count_gone")[0][0]
    return number


def _lock_gone(
    db: BaseDatabaseWrapper,
    status: str,
    after: datetime,
    limit: int,
    *,
    only: Sequence[UUID] | None = None,
    passed: Sequence[UUID] = (),
) -> list[tuple[Any, ...]]:
    return rows(
        db,
        "lock_gone",
        status=status,
        after=after,
        limit=limit,
        only=None if only is None else list(only),
        passed=list(passed),
    )


def _delete_locked(db: BaseDatabaseWrapper, roots: list[UUID]) -> set[UUID]:
    """Delete the trees of locked roots that may go, and return all their jobs.

    What that depends on is read after the locks.
    """
    if not roots:
        return set()
    members = [row[0] for row in rows(db, "lock_members", roots=roots)]
    gone = [row[0] for row in rows(db, "sweepable", roots=roots, locked=[*roots, *members])]
    if gone:
        delete_records(db, gone)
    return set(gone)


def _delete_unheld(db: BaseDatabaseWrapper, roots: list[UUID]) -> set[UUID]:
    """Do what `_delete_locked` does, but leave the trees that foreign keys of users point to."""
    try:
        with atomic(db):
            gone = _delete_locked(db, roots)
            # Else the end of the transaction would find it out.
            rows(db, "check_constraints")
            return gone
    except IntegrityError:
        if len(roots) == 1:
            return set()
        half = len(roots) // 2
        return _delete_unheld(db, roots[:half]) | _delete_unheld(db, roots[half:])


def delete_records(db: BaseDatabaseWrapper, ids: list[UUID]) -> dict[str, int]:
    """Delete locked jobs with all that belongs to them; return the counts by model."""
    rows(db, "unlink_replays", ids=ids)
    rows(db, "delete_signals", ids=ids)
    rows(db, "delete_holds", ids=ids)
    return {
        "durable.Step": len(rows(db, "delete_steps", ids=ids)),
        "durable.Attempt": len(rows(db, "delete_attempts", ids=ids)),
        "durable.DeadLetter": len(rows(db, "delete_letters", ids=ids)),
        "durable.Job": len(rows(db, "delete_jobs", ids=ids)),
    }
