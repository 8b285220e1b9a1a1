"""The verbs of an operator on jobs, cancel and run now; and the cancel of what starts too late."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from uuid import UUID

from django.db.backends.base.base import BaseDatabaseWrapper

from django_durable.choices import JobStatus
from django_durable.store.base import (
    Locked,
    atomic,
    bear_undos,
    ending,
    log_event,
    rows,
    settle_trees,
    wake_waiters,
)
from django_durable.store.enqueueing import LOCK_NAMESPACE, LOCK_TREE
from django_durable.store.recording import Keep
from django_durable.store.sweeping import delete_records

NOT_IN_TIME = "not started in time"


@dataclass(frozen=True)
class Cancelled:
    """Tell what a cancel did to one job: CANCELLED at once, or RUNNING with the request."""

    id: UUID
    status: JobStatus
    name: str
    reason: str


def cancel(
    db: BaseDatabaseWrapper, ids: Sequence[UUID], *, reason: str, tree: bool, keep: Keep
) -> tuple[tuple[Cancelled, ...], frozenset[str]]:
    """Cancel jobs, with `tree` all their unfinished descendants too; what had ended stays.

    READY and WAITING jobs are CANCELLED at once; running ones get a request. Returns what was
    changed and the queues in which waiters woke. The lock on each tree keeps births out until the
    transaction ends.
    """

    def cancel_locked() -> tuple[tuple[Cancelled, ...], frozenset[str]]:
        roots = [row[0] for row in rows(db, "roots", ids=list(ids))]
        _own_trees(db, roots)
        locked = dict(rows(db, "lock_tree", ids=list(ids), whole=tree))
        changed = tuple(
            Cancelled(row[0], JobStatus(row[1]), *row[2:])
            for row in rows(
                db,
                "cancel",
                ids=[job for job, in_tree in locked.items() if in_tree],
                reason=reason,
                keep_completed=keep.params()["keep_completed"],
                default_keep_completed=keep.completed,
            )
        )
        ended = [change.id for change in changed if change.status is JobStatus.CANCELLED]
        undoing = bear_undos(db, ended)
        woken = wake_waiters(db, ended, locked)
        if ended:
            settle_trees(db, roots)
        return changed, frozenset(woken | undoing)

    return ending(db, cancel_locked)


def cancel_late(
    db: BaseDatabaseWrapper, *, keep: Keep, limit: int
) -> tuple[list[UUID], frozenset[str]]:
    """Cancel jobs that have not started in time; return them and the queues in which others woke.

    Waits for no lock: what somebody else is writing, or whose waiter he is writing, is left; call
    again until fewer than `limit` come back.
    """
    with atomic(db):
        locked = Locked.of(rows(db, "lock_late", limit=limit))
        if not locked:
            return [], frozenset()
        found = rows(
            db,
            "cancel_late",
            ids=list(locked),
            reason=NOT_IN_TIME,
            keep_completed=keep.params()["keep_completed"],
            default_keep_completed=keep.completed,
        )
        ended = [row[0] for row in found]
        undoing = bear_undos(db, ended)
        woken = wake_waiters(db, ended, locked)
        settle_trees(db, locked.roots_of(ended) | (set(ended) if undoing else set()))
    return ended, frozenset(woken | undoing)


def _own_trees(db: BaseDatabaseWrapper, roots: Sequence[UUID]) -> None:
    rows(db, "own_trees", namespace=LOCK_NAMESPACE + LOCK_TREE, roots=list(roots))


def run_now(db: BaseDatabaseWrapper, ids: Sequence[UUID], by: str = "") -> list[tuple[UUID, str]]:
    """End the delay or backoff of READY jobs; return (id, queue) of those that had one.

    The history of each says so, and by whom.
    """
    event = log_event("run_now", by=by)
    with atomic(db):
        return [(row[0], row[1]) for row in rows(db, "run_now", ids=list(ids), event=event)]


def delete_trees(
    db: BaseDatabaseWrapper,
    ids: Sequence[UUID],
    before: Callable[[Sequence[UUID]], object] = lambda jobs: None,
) -> tuple[list[UUID], dict[str, int]]:
    """Delete the trees of these roots with all that belongs to them, in the caller's transaction.

    Returns the jobs that forbid it (not a root, not ended, or kept for a live job that has awaited
    one of the tree), when nothing is deleted, and otherwise the counts by table. The locks on the
    trees keep births out, and those on the jobs who would begin to await one. `before` is called
    with the jobs that are about to go.
    """
    _own_trees(db, ids)
    tree = rows(db, "lock_whole_tree", ids=list(ids))
    refused = [row[0] for row in tree if row[1] or row[2]]
    refused += [row[0] for row in rows(db, "find_kept", ids=list(ids))]
    if refused:
        return refused, {}
    jobs = [row[0] for row in tree]
    before(jobs)
    return [], delete_records(db, jobs)
