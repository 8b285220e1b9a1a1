"""The frame of every loop of the worker: one thread, an interruptible wait, and the outages."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from django.db import reset_queries

from django_durable import store
from django_durable.errorlog import get_logger
from django_durable.worker import answers, connections

logger = get_logger("django_durable.worker")

FIRST_RETRY = 0.1
LONGEST_RETRY = 2.0
# How often a database that stays away is mentioned.
REMIND_EVERY = 60.0

# What the server says of content is none of these: the store sees to that (`store.base.rows`).
# An OSError: no descriptor for a connection, or for waiting on one, can be had.
OUTAGE = (*store.OUTAGE, OSError)


def attend(what: str, duty: Callable[[], object]) -> None:
    """Do one duty of several; what is wrong with it, unless it is an outage, stops no other."""
    try:
        duty()
    except OUTAGE:
        raise
    except Exception:
        logger.exception("It went wrong to %s; all else goes on", what)
        connections.drop()


class Outage:
    """Keep count of a database that is away: how long to wait, and what to log, which is little."""

    def __init__(self, who: str) -> None:
        self._who = who
        self._since: float | None = None
        self._mentioned = 0.0
        self._pause = FIRST_RETRY

    @property
    def is_on(self) -> bool:
        """Tell whether the last statement failed for want of a database."""
        return self._since is not None

    def failed(self, error: BaseException) -> float:
        """Note a failure, drop the connection, and return how long to wait before the next try."""
        connections.drop()
        now = time.monotonic()
        if self._since is None:
            self._since = now
        if now - self._mentioned >= REMIND_EVERY:
            self._mentioned = now
            logger.warning(
                "The %s waits for the database: %s", self._who, str(error).strip().split("\n")[0]
            )
        pause = self._pause * (0.5 + random.random())  # noqa: S311 - no secret
        self._pause = min(self._pause * 2, LONGEST_RETRY)
        return pause

    def passed(self) -> bool:
        """Note a success; return True if it ended an outage."""
        if self._since is None:
            return False
        logger.warning(
            "The %s has the database back after %.1f s", self._who, time.monotonic() - self._since
        )
        self._since = None
        self._mentioned = 0.0
        self._pause = FIRST_RETRY
        return True


class Bell:
    """Be an event that only one thread waits for; a ring can't be cut short between two steps.

    Whoever rings may have something thrown at him, and must leave no lock behind that others need.
    """

    def __init__(self) -> None:
        self._gate = threading.Lock()
        self._gate.acquire()

    def ring(self) -> None:
        """End the wait, or the next one."""
        if self._gate.locked():
            # Somebody else may have been faster.
            with suppress(RuntimeError):
                self._gate.release()

    def clear(self) -> None:
        """Forget earlier rings."""
        self._gate.acquire(blocking=False)

    def wait(self, timeout: float | None) -> None:
        """Wait for a ring."""
        self._gate.acquire(timeout=-1 if timeout is None else timeout)


class Loop:
    """Call `step` in a thread until stopped; a step returns how long to wait for the next.

    `patience` is how much longer than others its statements may take.
    """

    def __init__(self, name: str, step: Callable[[], float | None], patience: float = 1.0) -> None:
        self.name = name
        self._step = step
        self._patience = patience
        self._bell = Bell()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def wake(self) -> None:
        """End the wait between two steps."""
        self._bell.ring()

    def stop(self) -> None:
        """Let the loop end after its present step."""
        self._stopping = True
        self._bell.ring()

    @property
    def has_failed(self) -> bool:
        """Tell whether the thread has ended without being told to."""
        return not self._stopping and self._thread.ident is not None and not self._thread.is_alive()

    def join(self, timeout: float | None = None) -> bool:
        """Wait for the end of the thread; return whether it has ended."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        outage = Outage(self.name)
        store.prepare_in_this_thread()
        answers.expect(self.name, self._patience)
        try:
            while not self._stopping:
                # Cleared before the step: what comes up during it is seen by the next one.
                self._bell.clear()
                try:
                    pause = self._step()
                    outage.passed()
                    # With DEBUG, Django keeps the text of every query.
                    reset_queries()
                except OUTAGE as error:
                    pause = outage.failed(error)
                except Exception:
                    logger.exception("The %s failed; it goes on", self.name)
                    connections.drop()
                    pause = 1.0
                if pause is None or pause > 0:
                    self._bell.wait(pause)
        finally:
            connections.drop()
