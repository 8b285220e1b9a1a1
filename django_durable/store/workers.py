"""The rows that show workers, and the dead letters whose hook is to be called."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from django.db.backends.base.base import BaseDatabaseWrapper

from django_durable.store.base import atomic, rows, settle_trees
from django_durable.store.recording import Keep


@dataclass(frozen=True)
class WorkerCard:
    """Hold what a worker says of itself."""

    incarnation: UUID
    name: str
    hostname: str
    pid: int
    queues: list[str]
    excluded_queues: list[str]
    job_names: list[str]
    capabilities: list[str]
    slots: int
    lease: timedelta


def beat(db: BaseDatabaseWrapper, card: WorkerCard, *, draining: bool) -> bool:
    """Write the worker's row with a fresh heartbeat; return whether an operator asked to drain.

    A row that somebody deleted is written anew.
    """
    lists = {key: json.dumps(value) for key, value in vars(card).items() if isinstance(value, list)}
    asked: bool = rows(db, "beat", draining=draining, **{**vars(card), **lists})[0][0]
    return asked


def retire(db: BaseDatabaseWrapper, incarnation: UUID) -> None:
    """Delete the row of a worker that has stopped cleanly."""
    rows(db, "retire", incarnation=incarnation)


def forget_dead(db: BaseDatabaseWrapper, after: timedelta) -> int:
    """Delete the rows of workers that have not been heard of for so long."""
    return len(rows(db, "forget_dead", after=after))


def take_hooks(
    db: BaseDatabaseWrapper, names: Sequence[str], retry_after: timedelta, limit: int = 20
) -> list[int]:
    """Return dead letters of these job types whose hook is due, and put them off for others.

    A worker that dies before `settle_hook` leaves them due again after `retry_after`.
    """
    found = rows(db, "take_hooks", names=list(names), retry_after=retry_after, limit=limit)
    return [row[0] for row in found]


def keep_dead(db: BaseDatabaseWrapper, letters: Sequence[int], keep: Keep) -> None:
    """Keep the dead jobs of these letters, whose types this process knows, for as long as it says.

    Who recorded the death may not have known the type, as a worker of another fleet that rescued
    the job.
    """
    found = [row[0] for row in rows(db, "kept_otherwise", letters=list(letters), **keep.params())]
    if not found:
        return
    with atomic(db):
        rows(db, "lock_jobs", ids=found)
        rows(db, "keep_otherwise", ids=found, **keep.params())
        settle_trees(db, found)


def settle_hooks(db: BaseDatabaseWrapper, letters: Sequence[int]) -> None:
    """Say that the hooks of these dead letters have been called."""
    rows(db, "settle_hooks", letters=list(letters))
