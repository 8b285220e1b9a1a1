"""The verbs that make jobs: enqueue, enqueue many, replace, replay, and the birth of a child."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from django.db.backends.base.base import BaseDatabaseWrapper

from django_durable.choices import LIVE, JobStatus, OnDuplicate
from django_durable.store.base import atomic, clock_offset, literal, quoted, rows, send
from django_durable.store.often import rows_often
from django_durable.uuid7 import uuid7, uuid7s

# First half of the advisory locks of the package ("dd", then what the lock is for).
LOCK_NAMESPACE = 0x64640000
LOCK_TREE = 3


class NewJob(NamedTuple):
    """Hold all that one INSERT needs; `args` and `kwargs` are encoded."""

    name: str
    queue_name: str
    requires: str | None
    priority: int
    metadata: dict[str, str]
    options: dict[str, Any]
    max_attempts: int | None
    run_after: datetime | None
    delay: timedelta
    on_duplicate: OnDuplicate
    idempotency_key: str | None
    args: str
    kwargs: str
    concurrency_key: str | None
    delivery_id: UUID | None = None

    def params(self) -> dict[str, Any]:
        """Return the columns as parameters of a statement."""
        params = self._asdict()
        del params["on_duplicate"]
        params["metadata"] = json.dumps(self.metadata) if self.metadata else "{}"
        params["options"] = json.dumps(self.options) if self.options else "{}"
        return params

    @property
    def is_plain(self) -> bool:
        """Tell whether it is to run at once and has no more than the defaults of its columns."""
        return not (
            self.delay
            or self.run_after
            or self.options
            or self.metadata
            or any(
                value is not None
                for value in (
                    self.requires,
                    self.idempotency_key,
                    self.concurrency_key,
                    self.delivery_id,
                )
            )
        )

    def as_row(self) -> dict[str, Any]:
        """Return the columns as a JSON object."""
        row = self._asdict()
        del row["on_duplicate"], row["delivery_id"]
        row["run_after"] = None if self.run_after is None else self.run_after.isoformat()
        row["delay"] = self.delay.total_seconds()
        return row


class Enqueued(NamedTuple):
    """Say which job an enqueue came to, and whether it made it.

    `refused` says that the mode forbids another job beside this one.
    """

    id: UUID
    created: bool
    enqueued_at: datetime | None = None
    run_after: datetime | None = None
    refused: bool = False


def enqueue(db: BaseDatabaseWrapper, new: NewJob) -> Enqueued:
    """Insert a job on the caller's connection, in the caller's transaction if there is one.

    One INSERT without a key. With one, a job that holds the key decides as `on_duplicate` says;
    the loser of a race waits for the winner's commit and then sees its row. A conflict is answered
    by the constraint without an error, so it breaks no transaction.
    """
    while True:
        settled = _insert(db, new) or _settle_duplicate(db, new, lambda: _insert(db, new))
        if settled is not None:
            return settled


Insert = Callable[[], Enqueued | None]


def _insert(db: BaseDatabaseWrapper, new: NewJob) -> Enqueued | None:
    job_id = uuid7()
    if new.is_plain and not clock_offset(db):
        ((now,),) = rows_often(
            db,
            "enqueue_plain",
            id=job_id,
            name=new.name,
            queue_name=new.queue_name,
            priority=new.priority,
            args=new.args,
            kwargs=new.kwargs,
            max_attempts=new.max_attempts,
        )
        return Enqueued(job_id, True, now, now)
    for enqueued_at, run_after in rows(db, "enqueue", id=job_id, **new.params()):
        return Enqueued(job_id, True, enqueued_at, run_after)
    return None


def _settle_duplicate(db: BaseDatabaseWrapper, new: NewJob, insert: Insert) -> Enqueued | None:
    """Decide over the holder of the key; None when it has gone and the INSERT may try again.

    Most answers need no lock. What takes the key away or replaces the job is decided again once
    its holder is locked.
    """
    key = {"name": new.name, "idempotency_key": new.idempotency_key}
    found = rows(db, "find_key", **key)
    answer = _answer(new, *found[0]) if found else None
    if answer is not None or not found:
        return answer
    with atomic(db):
        # Read after the lock: somebody may have begun to await the job, which keeps its key.
        found = rows(db, "find_key", **key) if rows(db, "lock_key", **key) else []
        answer = _answer(new, *found[0]) if found else None
        if answer is not None or not found:
            return answer
        existing, _status, gone = found[0]
        if new.on_duplicate is OnDuplicate.REPLACE and not gone and _replace(db, new, existing):
            return Enqueued(existing, False)
        rows(db, "free_key", id=existing)
        return insert()


def _answer(new: NewJob, existing: UUID, status: str, gone: bool) -> Enqueued | None:
    """Return what a call comes to that leaves the key where it is, or None."""
    mode = new.on_duplicate
    if gone:
        return None
    if mode is OnDuplicate.RETURN_EXISTING or (mode is OnDuplicate.RETURN_LIVE and status in LIVE):
        return Enqueued(existing, False)
    failed = status in (JobStatus.DEAD, JobStatus.CANCELLED)
    if mode is OnDuplicate.NO_REUSE or (mode is OnDuplicate.ALLOW_REUSE_ON_FAILURE and not failed):
        return Enqueued(existing, False, refused=True)
    return None


def _replace(db: BaseDatabaseWrapper, new: NewJob, existing: UUID) -> bool:
    """Give the existing job the new call's arguments and options, unless it has started."""
    params = new.params()
    for name in ("name", "idempotency_key", "delivery_id"):
        del params[name]
    return bool(rows(db, "replace", existing=existing, **params))


def enqueue_many(db: BaseDatabaseWrapper, news: Sequence[NewJob]) -> list[Enqueued]:
    """Insert jobs of equal options, a round trip for all; those whose key is taken go one by one.

    All differ only in arguments and keys. The caller opens the transaction, and brings the jobs
    in the order of their keys: two callers with the same keys could else wait for each other.
    """
    keys = [new.idempotency_key for new in news]
    if not any(key is not None for key in keys):
        return send_many(db, news)()
    ids = uuid7s(len(news))
    params = _batch_params(news, ids)
    params["keys"] = literal([_nullable(key) for key in keys])
    ((enqueued_at, run_after, made),) = rows(db, "enqueue_many_keyed", **params)
    born = set(made or ())
    return [
        Enqueued(job_id, True, enqueued_at, run_after) if job_id in born else enqueue(db, new)
        for job_id, new in zip(ids, news, strict=True)
    ]


def send_many(db: BaseDatabaseWrapper, news: Sequence[NewJob]) -> Callable[[], list[Enqueued]]:
    """Insert jobs of equal options that have no idempotency keys; return what waits for them.

    In a `pipeline` the next jobs can be sent before.
    """
    ids = uuid7s(len(news))
    answer = send(db, "enqueue_many", **_batch_params(news, ids))

    def enqueued() -> list[Enqueued]:
        ((enqueued_at, run_after),) = answer()
        return [Enqueued(job_id, True, enqueued_at, run_after) for job_id in ids]

    return enqueued


def _batch_params(news: Sequence[NewJob], ids: Sequence[UUID]) -> dict[str, Any]:
    params = news[0].params()
    del params["delivery_id"], params["idempotency_key"], params["concurrency_key"]
    # Arrays as literals: their adaptation, value by value, would cost more than the INSERT.
    params.update(
        ids=literal([job_id.hex for job_id in ids]),
        args=literal([quoted(new.args) for new in news]),
        kwargs=literal([quoted(new.kwargs) for new in news]),
        concurrency_keys=literal([_nullable(new.concurrency_key) for new in news]),
    )
    return params


def _nullable(text: str | None) -> str:
    return "NULL" if text is None else quoted(text)


def bear(
    db: BaseDatabaseWrapper, new: NewJob, *, parent: UUID, root: UUID, epoch: int
) -> UUID | None:
    """Insert one child of a running job; see `bear_many`."""
    return bear_many(db, [new], parent=parent, root=root, epoch=epoch)[0]


def bear_many(
    db: BaseDatabaseWrapper, news: Sequence[NewJob], *, parent: UUID, root: UUID, epoch: int
) -> list[UUID | None]:
    """Insert children of a running job, in order; None for one that was not born.

    None is born when the claim is lost or the tree cancelled, and none with a key that is taken.
    Holds the tree's lock, shared, to the end of the transaction: a cancel of the tree that comes
    later sees the children, one that came first is seen here.
    """
    ids = uuid7s(len(news))
    with atomic(db):
        rows(db, "share_tree", namespace=LOCK_NAMESPACE + LOCK_TREE, root=root)
        if parent == root:
            rows(db, "mark_parent", parent=parent, epoch=epoch)
        children = json.dumps(
            [{"id": child.hex, **new.as_row()} for child, new in zip(ids, news, strict=True)]
        )
        found = rows(db, "birth", children=children, parent=parent, epoch=epoch)
        born = {row[0] for row in found}
    return [child if child in born else None for child in ids]


def bear_over_key(
    db: BaseDatabaseWrapper, new: NewJob, *, parent: UUID, root: UUID, epoch: int
) -> Enqueued:
    """Decide, as `on_duplicate` says, over a child whose key is taken.

    For a run whose claim is known to stand until the transaction ends.
    """

    def born() -> Enqueued | None:
        child = bear(db, new, parent=parent, root=root, epoch=epoch)
        return None if child is None else Enqueued(child, True)

    while True:
        settled = _settle_duplicate(db, new, born) or born()
        if settled is not None:
            return settled


@dataclass(frozen=True)
class Replayed:
    """Say which job replays the dead letter; `id` is None when there is none to replay."""

    id: UUID | None
    queue_name: str = ""
    already: bool = False
    # The undo job that has not ended yet.
    undoing: UUID | None = None


def replay(
    db: BaseDatabaseWrapper,
    letter: int,
    *,
    args: str | None = None,
    kwargs: str | None = None,
    delay: timedelta = timedelta(0),
    by: str = "",
    copy_before: int | None = None,
    copy: bool = True,
) -> Replayed:
    """Make a new READY job of a dead one and mark the dead letter, in one transaction.

    The lock on the dead job decides between two replays; the second finds the letter marked. It
    decides, too, between the replay of a job and that of its undo job. The idempotency key moves to
    the new job. With `copy` it has the checkpoints that the dead one earned, those before the
    row `copy_before` only if that is given, and it is the new one now that would take them back.
    """

    def make() -> Replayed:
        locked = rows(db, "lock_letter", letter=letter)
        found = rows(db, "read_letter", letter=letter) if locked else []
        if not found:
            return Replayed(None)
        (dead,) = (job for job, is_dead in locked if is_dead)
        already, key, undoing = found[0]
        if already or undoing is not None:
            return Replayed(None, already=already, undoing=undoing)
        new = uuid7()
        if key is not None:
            rows(db, "free_key", id=dead)
        queue = rows(
            db,
            "replay",
            id=new,
            dead=dead,
            args=args,
            kwargs=kwargs,
            delay=delay,
            idempotency_key=key,
        )[0][1]
        if copy:
            rows(db, "copy_checkpoints", new=new, old=dead, before=copy_before, undo=True)
            rows(db, "hand_on_undo", old=dead, before=copy_before)
        rows(db, "mark_replayed", letter=letter, new=new, by=by)
        return Replayed(new, queue)

    return _copying(db, make, copy=copy, letter=letter)


def fork(
    db: BaseDatabaseWrapper,
    old: UUID,
    *,
    args: str | None = None,
    kwargs: str | None = None,
    copy: bool = False,
    copy_before: int | None = None,
) -> Replayed:
    """Make a new READY job like another one; the old one and its key stay as they are.

    What it copies is the old one's to take back; while that is being done nothing is copied.
    """

    def make() -> Replayed:
        undoing = find_undo(db, old) if copy else None
        if undoing is not None:
            return Replayed(None, undoing=undoing)
        new = uuid7()
        made = rows(db, "fork", id=new, old=old, args=args, kwargs=kwargs)
        if not made:
            return Replayed(None)
        if copy:
            rows(db, "copy_checkpoints", new=new, old=old, before=copy_before, undo=False)
        return Replayed(new, made[0][0])

    return _copying(db, make, copy=copy, job=old)


def find_undo(db: BaseDatabaseWrapper, job: UUID) -> UUID | None:
    """Return the living undo job that may be taking back what the job has, or None."""
    found = rows(db, "find_undo", id=job)
    return found[0][0] if found else None


class LateKin(Exception):  # noqa: N818 - the verb is done anew
    """Somebody has come up who could take back what is about to be copied."""


def _copying(
    db: BaseDatabaseWrapper,
    verb: Callable[[], Replayed],
    *,
    copy: bool,
    job: UUID | None = None,
    letter: int | None = None,
) -> Replayed:
    """Run a verb in one transaction; if it copies checkpoints, under the locks of a job's kin.

    Whoever could take back what is copied is locked until the copy can be seen: an undo job marks
    the copies that it sees.
    """
    while True:
        try:
            with atomic(db):
                if copy:
                    _lock_kin(db, job, letter)
                return verb()
        except LateKin:
            continue


def _lock_kin(db: BaseDatabaseWrapper, job: UUID | None, letter: int | None) -> None:
    """Lock the kin of a job; raises `LateKin` if more have come up by the time that is done.

    All is done anew then, so that the locks are taken in their one order. In the caller's
    transaction it is a savepoint, whose locks are given back so, too.
    """
    found = len(rows(db, "lock_kin", job=job, letter=letter))
    # What it is about to replay itself, alone, nobody else has replayed.
    is_alone = letter is not None and found == 1
    if not is_alone and rows(db, "count_kin", job=job, letter=letter)[0][0] > found:
        raise LateKin
