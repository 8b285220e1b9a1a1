"""Hints between processes by NOTIFY. They save waiting; the poll behind them is the truth.

A notification takes a cluster-wide lock at its commit, so it is sent after the caller's commit,
outside his transaction, and at most once per channel and topic every `WINDOW` in one process. One
that falls into the window is not sent: who is notified looks again when the window has passed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable

from django.db import transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from django_durable.conf import conf

READY = "durable_ready"  # a queue has work; the payload is its name
ENDED = "durable_ended"  # jobs have ended; the payload is their ids, or "*" for many
CANCEL = "durable_cancel"  # running jobs are to be cancelled; the payload is their ids, or "*"
DRAIN = "durable_drain"  # workers are to stop; the payload is their incarnations, or "*"
WINDOW = 0.02
MAX_IDS = 100

_lock = threading.Lock()
_last: dict[tuple[str, str], float] = {}


def after_commit(db: BaseDatabaseWrapper, channel: str, topics: Iterable[str]) -> None:
    """Notify each topic once the surrounding transaction has committed, or now without one."""
    names = tuple(topics)
    if not names or not conf.notify:
        return
    if _is_manual(db):
        # The server sends it with the commit, if there is one.
        send(db, channel, names)
    elif db.in_atomic_block:
        transaction.on_commit(lambda: notify(db, channel, names), using=db.alias, robust=True)
    elif due := _due(channel, names):
        # Of many small transactions in a row, few come here.
        transaction.on_commit(lambda: send(db, channel, due), using=db.alias, robust=True)


def call_after_commit(db: BaseDatabaseWrapper, call: Callable[[], object]) -> None:
    """Call once the surrounding transaction has committed, or now without one.

    Not at all where the caller commits by hand: Django does not know then when he does.
    """
    if not _is_manual(db):
        transaction.on_commit(call, using=db.alias, robust=True)


def _is_manual(db: BaseDatabaseWrapper) -> bool:
    return not db.in_atomic_block and not db.get_autocommit()


def notify(db: BaseDatabaseWrapper, channel: str, topics: Iterable[str]) -> None:
    """Notify each topic that was not notified within the window."""
    due = _due(channel, topics)
    if due:
        send(db, channel, due)


def send(db: BaseDatabaseWrapper, channel: str, topics: Iterable[str]) -> None:
    """Notify each topic."""
    with db.cursor() as cursor:
        cursor.execute(
            "SELECT pg_notify(%s, topic) FROM unnest(%s::text[]) AS topic", [channel, list(topics)]
        )


def ids_topic(ids: Iterable[object]) -> str:
    """Return the payload that names these jobs, or "*" when they are too many for one."""
    texts = [str(job_id) for job_id in ids]
    return ",".join(texts) if len(texts) <= MAX_IDS else "*"


def _due(channel: str, topics: Iterable[str]) -> tuple[str, ...]:
    return tuple(topic for topic in topics if _is_due(channel, topic))


def _is_due(channel: str, topic: str) -> bool:
    if channel != READY:
        # Payloads of ids differ each time, and their senders batch.
        return True
    now = time.monotonic()
    with _lock:
        if now - _last.get((channel, topic), -WINDOW) < WINDOW:
            return False
        _last[(channel, topic)] = now
        return True
