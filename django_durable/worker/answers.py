"""Statements that get no answer: a network that swallows packets closes no connection.

TCP notices a peer that acknowledges nothing, but not a proxy or a server that takes all and answers
nothing. So the main thread of each process of a worker looks how long its loops have waited. A wait
that is too long is cancelled, which ends it at once if the server was only slow or waited for a
lock; what still gets no answer is cut, and the loop connects anew as after any outage.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import psycopg

from django_durable.errorlog import get_logger

logger = get_logger("django_durable.worker")

# How long a cancelled statement may take to say so.
CUT_AFTER = 2.0
# Nobody is shown to be away by an answer that takes less, however short the lease is.
SHORTEST = 5.0


class Waiter:
    """Know since when a thread has waited for the answer to a statement."""

    def __init__(self, name: str, limit: float) -> None:
        self.name = name
        self.limit = limit
        self.since: float | None = None
        self.raw: psycopg.Connection[Any] | None = None
        self._told: float | None = None

    def look(self) -> None:
        """Cancel what has taken too long, and cut the connection if that did not help."""
        since, raw = self.since, self.raw
        if since is None or raw is None:
            return
        waited = time.monotonic() - since
        if self._told != since:
            if waited > self.limit:
                self._told = since
                logger.warning("The database has not answered the %s for %.0f s", self.name, waited)
                # In a thread, since the request may get no answer either.
                # Where none can be had, the connection is cut all the same.
                with contextlib.suppress(RuntimeError):
                    threading.Thread(target=_cancel, args=(raw,), daemon=True).start()
        elif waited > self.limit + CUT_AFTER:
            self._cut(since, raw)

    def _cut(self, since: float, raw: psycopg.Connection[Any]) -> None:
        with (
            contextlib.suppress(OSError, psycopg.Error),
            socket.socket(fileno=os.dup(raw.fileno())) as end,
        ):
            # Otherwise the number may be that of another connection by now.
            if self.since == since:
                end.shutdown(socket.SHUT_RDWR)


_limit = float("inf")
_waiters: list[Waiter] = []
_thread = threading.local()


def expect(name: str, patience: float = 1.0) -> None:
    """Watch the statements of this thread; `patience` is in units of the process's limit."""
    _thread.waiter = Waiter(name, _limit * patience)
    _waiters.append(_thread.waiter)


def current() -> Waiter | None:
    """Return what watches the statements of this thread."""
    waiter: Waiter | None = getattr(_thread, "waiter", None)
    return waiter


@contextlib.contextmanager
def standing_in(waiter: Waiter | None) -> Iterator[None]:
    """Watch the statements of this thread as those of another, whose connection it uses."""
    own, _thread.waiter = current(), waiter
    try:
        yield
    finally:
        _thread.waiter = own


def look() -> None:
    """See to the statements of all threads; to be called several times a second."""
    for waiter in _waiters:
        waiter.look()


def limit_waits(limit: float) -> None:
    """Let the loops of this process wait for an answer so long at most.

    Every round trip of psycopg goes through one method, where it is noted.
    """
    global _limit
    _limit = limit
    wait = psycopg.Connection.wait

    def watched(self: psycopg.Connection[Any], *args: Any, **kwargs: Any) -> Any:
        waiter = current()
        if waiter is None:
            return wait(self, *args, **kwargs)
        waiter.raw = self
        waiter.since = time.monotonic()
        try:
            return wait(self, *args, **kwargs)
        finally:
            waiter.since = None
            waiter.raw = None

    psycopg.Connection.wait = watched  # type: ignore[method-assign]


def _cancel(raw: psycopg.Connection[Any]) -> None:
    with contextlib.suppress(psycopg.Error, OSError):
        raw.cancel_safe(timeout=CUT_AFTER)
