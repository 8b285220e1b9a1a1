"""The timekeeper: fires the schedules of a child, in the thread of its claimer."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta

from django_durable import firing
from django_durable.aside import Aside
from django_durable.enqueueing import telling
from django_durable.worker.announcer import Announcer
from django_durable.worker.loops import OUTAGE, logger
from django_durable.worker.options import WorkerOptions

# How often it looks for schedules whose job type nobody knows.
MARK_EVERY = 5.0


class Timekeeper:
    """Fire what is due, on time within a poll interval, and know when to look again."""

    def __init__(self, options: WorkerOptions, announcer: Announcer) -> None:
        self._names = options.served_names()
        self._poll_interval = options.poll_interval
        self._announcer = announcer
        # What is left of reconciling; None before it has begun.
        self._left: Sequence[firing.Duty] | None = None
        self._aside = Aside()
        # Not at once: the row that says what this worker knows may not be there yet.
        self._mark_at = time.monotonic() + MARK_EVERY
        self.next_at = 0.0
        # There may be more that is due already.
        self.behind = False

    def step(self) -> None:
        """Look, unless it is too early; what is wrong with schedules stops no claims."""
        now = time.monotonic()
        if now < self.next_at:
            return
        due_in, self.behind = None, False
        try:
            # Users' code, which makes keys and hears of new jobs, must keep neither claims nor
            # other schedules for long.
            with self._aside.asking(), telling(self._announcer.enqueued):
                due_in = self._look(now)
            self.behind = due_in == 0 or not self._has_reconciled
        except OUTAGE as error:
            # If the database is away, the claim that follows says so. If not, it must go on.
            logger.warning(
                "The schedules wait for a database: %s", str(error).strip().split("\n")[0]
            )
        except Exception:  # noqa: BLE001 - the claims go on, and so does this
            logger.exception("The schedules could not be looked at")
        done = time.monotonic()
        pause = self._poll_interval if due_in is None else min(due_in, self._poll_interval)
        # However much there is to catch up with, half of the time is for claims.
        self.next_at = done + max(pause, min(done - now, self._poll_interval))

    @property
    def _has_reconciled(self) -> bool:
        return self._left is not None and not self._left

    def _look(self, now: float) -> float | None:
        if not self._has_reconciled:
            self._left = firing.reconcile(self._names, self._left)
        if now >= self._mark_at:
            firing.mark_unknown()
            self._mark_at = now + MARK_EVERY
        ahead = timedelta(seconds=self._poll_interval)
        return firing.run_due(self._names, ahead)
