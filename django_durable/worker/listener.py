"""The listener: hands notifications on to the children, and probes after it was away."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import psycopg

from django_durable import notifications
from django_durable.conf import conf
from django_durable.results import Pooled, connect_to_listen
from django_durable.worker.loops import Loop, logger

RECONNECT_AFTER = 2.0
# A connection that is silent for so long is asked whether it is still there.
ASK_AFTER = 10.0
# A pooler that is taken away is worth a look, and no more.
ASK_POOLER_AFTER = 300.0
NO_WAY = (
    "Notifications pass no pooler, so this worker polls; an alias in DURABLE_LISTEN_DATABASE"
    " that reaches PostgreSQL directly would wake it"
)


class Listener:
    """Listen over a plain connection; without one, the polls of the children find everything."""

    def __init__(
        self,
        work: Callable[[], None],
        cancel: Callable[[list[str]], None],
        look_for_requests: Callable[[], None],
    ) -> None:
        self._work = work
        self._cancel = cancel
        self._look_for_requests = look_for_requests
        self._connection: psycopg.Connection[Any] | None = None
        self._had_one = False
        self._said_pooled = False
        self._heard_at = 0.0
        self.loop = Loop("listener", self._step)

    def _step(self) -> float:
        if not conf.notify:
            return 3600.0
        if self._connection is None:
            try:
                self._connect()
            except Pooled:
                if not self._said_pooled:
                    self._said_pooled = True
                    logger.warning(NO_WAY)
                return ASK_POOLER_AFTER
        if self._connection is None:
            return RECONNECT_AFTER
        try:
            self._hear(self._connection)
        except (psycopg.Error, OSError) as error:
            logger.info("The listening connection is lost: %s", str(error).strip().split("\n")[0])
            self._connection.close()
            self._connection = None
            return RECONNECT_AFTER
        return 0

    def _hear(self, connection: psycopg.Connection[Any]) -> None:
        if time.monotonic() - self._heard_at > ASK_AFTER:
            connection.execute("SELECT 1")
            self._heard_at = time.monotonic()
        for note in connection.notifies(timeout=0.5, stop_after=1):
            self._heard_at = time.monotonic()
            if note.channel == notifications.READY:
                self._work()
            elif note.channel == notifications.DRAIN or note.payload == "*":
                self._look_for_requests()
            else:
                self._cancel(note.payload.split(","))

    def _connect(self) -> None:
        self._connection = connect_to_listen(
            notifications.READY, notifications.CANCEL, notifications.DRAIN
        )
        if self._connection is not None:
            self._heard_at = time.monotonic()
            if self._had_one:
                logger.info("Listening again")
            self._had_one = True
            # Whatever was notified meanwhile is unheard.
            self._work()
            self._look_for_requests()

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
