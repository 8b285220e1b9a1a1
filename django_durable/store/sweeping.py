"""The verbs of retention: delete what is kept no longer, tree by tree, a batch a transaction."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from django.db import IntegrityError
from django.db.backends.base.base import BaseDatabaseWrapper

from django_durable.choices import FINISHED
from django_durable.store.base import atomic, now, rows
from django_durable.store.enqueueing import LOCK_NAMESPACE
from django_durable.store.pointers import pointed_to

LOCK_SWEEP = 5
LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)
# What bounds a transaction, its memory and the time that a worker's stop may wait for it.
MOST_ROOTS = 300
MOST_MEMBERS = 2000
# What a sweep had to leave, because of foreign keys or living waiters, costs as much to look at
# as what it deletes; so only every so many seconds does one begin at what is gone the longest.
REVISIT = 300.0
# The others begin where the one before did, less what a slow commit may still have brought.
MARGIN = timedelta(minutes=1)
# So long before the time of a tree is over, those of its jobs that have none yet get it too.
AHEAD = timedelta(minutes=1)


# The other members of trees, by root.
_Trees = Mapping[UUID, Sequence[UUID]]


@dataclass
class Position:
    """Remember where a sweep stands, so that what it had to leave does not hold it up.

    It goes through the statuses one after the other, each from the longest gone on. `left` are
    the roots that it has passed, `begun` is that of a tree which goes in pieces. When it has seen
    all, it begins anew with what has gone `since`.
    """

    place: int = 0
    after: datetime = LONG_AGO
    left: list[UUID] = field(default_factory=list)
    begun: UUID | None = None
    is_passing: bool = False
    since: datetime = LONG_AGO
    passed_at: datetime | None = None
    revisit_at: float = 0.0
    settled_until: datetime = LONG_AGO

    @property
    def status(self) -> str:
        """Return the status whose turn it is."""
        return FINISHED[self.place].value

    def begin(self, moment: datetime) -> None:
        """Begin a pass with what has gone since the last one, or now and then with all."""
        if time.monotonic() >= self.revisit_at or self.passed_at is None:
            self.since, self.revisit_at = LONG_AGO, time.monotonic() + REVISIT
        else:
            self.since = self.passed_at - MARGIN
        self.passed_at, self.after, self.is_passing = moment, self.since, True

    def advance(self, seen: Sequence[tuple[Any, ...]], gone: set[UUID], *, last: bool) -> bool:
        """Move on from the roots just seen; return False when all statuses have been seen.

        `last` says that this status has no more.
        """
        if last:
            self.place, self.after, self.left = (self.place + 1) % len(FINISHED), self.since, []
            self.is_passing = self.place != 0
            return self.is_passing
        if seen[-1][1] > self.after:
            # Those that were left before that moment are not found again.
            self.after, self.left = seen[-1][1], []
        self.left += [root for root, kept_until in seen if root not in gone]
        return True


@dataclass(frozen=True)
class Swept:
    """Tell how many jobs a batch has deleted, and whether the sweep has more to look at."""

    deleted: int
    more: bool


@dataclass(frozen=True)
class _Batch:
    """Tell what became of locked roots: of how many of them, which are gone, and how many jobs.

    `begun` is the root of a tree of which a piece is gone.
    """

    seen: int
    gone: set[UUID]
    deleted: int
    begun: UUID | None = None


def sweep(
    db: BaseDatabaseWrapper,
    position: Position,
    *,
    limit: int = MOST_ROOTS,
    most: int = MOST_MEMBERS,
    alone: bool = True,
) -> Swept:
    """Delete up to `limit` trees whose time is over, in one transaction.

    They have up to `most` members besides their roots; a tree of more goes by itself, in pieces of
    as many. With `alone` only one sweeper works at a time; the others find nothing to do. Waits for
    no lock and takes no tree that somebody holds (a replay, a job that begins to await a member) or
    that a foreign key of a user's table points to. A crash deletes nothing of the batch.
    """
    with atomic(db):
        if alone and not rows(db, "try_sweep", namespace=LOCK_NAMESPACE + LOCK_SWEEP)[0][0]:
            return Swept(0, more=False)
        if not position.is_passing:
            _begin(db, position)
        found = _lock_gone(db, position.status, position.after, limit, passed=position.left)
        batch = _delete_batch(db, [row[0] for row in found], most, position.begun)
    position.begun = batch.begun
    if batch.begun is not None:
        return Swept(batch.deleted, more=True)
    last = batch.seen == len(found) < limit
    return Swept(batch.deleted, position.advance(found[: batch.seen], batch.gone, last=last))


def _begin(db: BaseDatabaseWrapper, position: Position) -> None:
    """Begin a pass, and settle the trees whose time will soon be over and that it has not yet.

    What is over already is swept as it is.
    """
    moment = now(db)
    until = moment + AHEAD
    rows(db, "settle_late", roots=[], after=max(position.settled_until, moment), until=until)
    position.settled_until = until
    position.begin(moment)


def sweep_these(db: BaseDatabaseWrapper, ids: Sequence[UUID]) -> None:
    """Delete those of these successful roots whose time is over already.

    What is large, or what a foreign key of a user's table points to, is left to the sweeps.
    """
    try:
        with atomic(db):
            found = _lock_gone(db, "SUCCESSFUL", LONG_AGO, len(ids), only=ids)
            trees, _cut = _lock_members(db, [row[0] for row in found], MOST_MEMBERS)
            _delete_locked(db, _unpointed(db, trees))
    except IntegrityError:
        # It came after the look.
        pass


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


def _lock_members(
    db: BaseDatabaseWrapper, roots: Sequence[UUID], most: int
) -> tuple[_Trees, _Trees]:
    """Lock up to `most` other members of these trees; return the whole trees, and the one cut."""
    found = rows(db, "lock_members", roots=list(roots), limit=most + 1) if roots else []
    trees: dict[UUID, list[UUID]] = {root: [] for root in roots}
    for root, member in found:
        trees[root].append(member)
    if len(found) <= most:
        return trees, {}
    cut = found[-1][0]
    whole = roots[: roots.index(cut)]
    return {root: trees[root] for root in whole}, {cut: trees[cut]}


def _delete_batch(
    db: BaseDatabaseWrapper, roots: Sequence[UUID], most: int, begun: UUID | None
) -> _Batch:
    trees, cut = _lock_members(db, roots, most)
    if trees or not cut:
        gone = _delete_unheld(db, trees)
        return _Batch(len(trees), gone, sum(1 + len(trees[root]) for root in gone))
    ((root, members),) = cut.items()
    # Once it reads as gone from its root to its leaves, that stays so: piece after piece, also
    # after a crash.
    deleted = 0
    if begun == root or _may_go_in_pieces(db, root):
        deleted = _try_to_delete(db, members[:most])
    return _Batch(1, set(), deleted, root if deleted else None)


def _may_go_in_pieces(db: BaseDatabaseWrapper, root: UUID) -> bool:
    rows(db, "settle_late", roots=[root], after=LONG_AGO, until=LONG_AGO)
    return bool(rows(db, "wholly_gone", root=root)[0][0]) and not pointed_to(db, [root])


def _unpointed(db: BaseDatabaseWrapper, trees: _Trees) -> _Trees:
    held = pointed_to(db, list(trees))
    return {root: members for root, members in trees.items() if root not in held}


def _delete_locked(db: BaseDatabaseWrapper, trees: _Trees) -> set[UUID]:
    """Delete the locked trees that may go, and return their roots.

    What that depends on is read after the locks.
    """
    if not trees:
        return set()
    locked = [len(members) for members in trees.values()]
    gone = {row[0] for row in rows(db, "sweepable", roots=list(trees), locked=locked)}
    if gone:
        delete_records(db, [job for root in gone for job in (root, *trees[root])])
    return gone


def _delete_unheld(db: BaseDatabaseWrapper, trees: _Trees) -> set[UUID]:
    """Do what `_delete_locked` does, but leave the trees that foreign keys of users point to.

    What the look at them has not seen (it came too late, or points to a dead letter) is found by
    halves.
    """
    trees = _unpointed(db, trees)
    if not trees:
        return set()
    try:
        with atomic(db):
            gone = _delete_locked(db, trees)
            # Else the end of the transaction would find it out.
            rows(db, "check_constraints")
            return gone
    except IntegrityError:
        if len(trees) == 1:
            return set()
        roots = list(trees)
        half = len(roots) // 2
        parts = [{root: trees[root] for root in part} for part in (roots[:half], roots[half:])]
        return _delete_unheld(db, parts[0]) | _delete_unheld(db, parts[1])


def _try_to_delete(db: BaseDatabaseWrapper, ids: Sequence[UUID]) -> int:
    """Delete the locked jobs unless a foreign key of a user points to one; return how many."""
    try:
        with atomic(db):
            delete_records(db, list(ids))
            rows(db, "check_constraints")
            return len(ids)
    except IntegrityError:
        return 0


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
