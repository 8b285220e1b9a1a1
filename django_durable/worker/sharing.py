"""The recorder's connection, which runs use too: to connect takes longer than most of their verbs.

It is used by one thread at a time. What runs over it must wait for nothing but the database, and
for no lock for more than a moment, since all ends of the child are written over it.
"""

from __future__ import annotations

import asyncio
import os
import select
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
from django.db import Error, connections
from django.db.backends.base.base import BaseDatabaseWrapper

from django_durable import store
from django_durable.worker import answers

# How long a run waits for the connection before it makes one of its own.
PATIENCE = 1.0


class SharedConnection:
    """Be a connection that its owner, a thread, opens and closes, and that others use in turn."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Those who could do without it leave it to those who wait for it.
        self._is_claimed = False
        self._waiting: deque[None] = deque()
        # None when only the owner can tell whether it works.
        self._db: BaseDatabaseWrapper | None = None
        self._waiter: answers.Waiter | None = None
        self._pid = os.getpid()

    @contextmanager
    def owned(self) -> Iterator[None]:
        """Let the owner use this thread's connection; whoever comes after a success may have it."""
        self._is_claimed = True
        with self._lock:
            self._is_claimed = False
            self._db = None
            yield
            self._db, self._waiter = store.connection(), answers.current()
            if not self._db.allow_thread_sharing:
                self._db.inc_thread_sharing()

    @contextmanager
    def if_free(self) -> Iterator[BaseDatabaseWrapper | None]:
        """Give the connection if that is possible at once, for statements of the store only."""
        if self._is_claimed or self._waiting or not self._lock.acquire(blocking=False):
            yield None
            return
        try:
            db = self._lendable()
            if db is None:
                yield None
            else:
                with store.preparing(), answers.standing_in(self._waiter):
                    yield db
        finally:
            self._lock.release()

    @contextmanager
    def lent(self) -> Iterator[bool]:
        """Wait a moment for the connection and make it this thread's; tell whether that is done.

        One that the server has closed meanwhile is not lent: an error would be the run's. Nor is
        one on which a lock is waited for as long as it takes.
        """
        self._waiting.append(None)
        is_held = self._lock.acquire(timeout=PATIENCE)
        self._waiting.pop()
        db = None
        # What fails here is for its owner to find.
        with suppress(Error):
            db = self._brief() if is_held else None
        if db is None:
            if is_held:
                self._lock.release()
            yield False
            return
        own = connections[db.alias]
        connections[db.alias] = db
        try:
            with store.preparing(), answers.standing_in(self._waiter):
                yield True
        finally:
            connections[db.alias] = own
            _close_if_in_transaction(db.connection)
            self._lock.release()

    def _brief(self) -> BaseDatabaseWrapper | None:
        """Return the connection if it works, and waits for a lock but a moment."""
        db = self._lendable()
        is_fit = db is not None and _is_silent(db.connection) and store.wait_briefly(db)
        return db if is_fit else None

    def _lendable(self) -> BaseDatabaseWrapper | None:
        db = self._db
        if db is None or db.connection is None or os.getpid() != self._pid:
            # A process that a job has forked must not touch it.
            return None
        return None if _is_on_loop() else db


def _is_on_loop() -> bool:
    """Tell whether an event loop runs in this thread, where Django allows no statement."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _is_silent(raw: psycopg.Connection[Any]) -> bool:
    """Tell whether the server has said nothing unasked, such as that it closes the connection."""
    poll = select.poll()
    try:
        poll.register(raw.fileno(), select.POLLIN)
    except psycopg.Error:
        return False
    return not poll.poll(0)


def _close_if_in_transaction(raw: psycopg.Connection[Any] | None) -> None:
    """Let nobody's end be written into a transaction that is left open."""
    idle = psycopg.pq.TransactionStatus.IDLE
    if raw is not None and raw.info.transaction_status != idle:
        raw.close()
