"""The claimer: takes what fits the free slots, and gives back what it can't account for."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from uuid import UUID

from django_durable import notifications, store
from django_durable.context import JobContext
from django_durable.errortext import ErrorText
from django_durable.execution import timeout_of
from django_durable.jobtypes import registry
from django_durable.operations import current_keep
from django_durable.outcomes import Rejected
from django_durable.store import Claim, Claims, Owner
from django_durable.worker.announcer import Announcer
from django_durable.worker.loops import OUTAGE, Loop, logger
from django_durable.worker.options import WorkerOptions
from django_durable.worker.recorder import Recorder
from django_durable.worker.runs import Run, Runs

RESCUE_BATCH = 100
FORGET_WORKERS_AFTER = timedelta(days=1)


class Claimer:
    """Claim jobs whenever a slot is free and a job may be due."""

    def __init__(
        self,
        options: WorkerOptions,
        claimer: UUID,
        runs: Runs,
        recorder: Recorder,
        announcer: Announcer,
        start: Callable[[Run], None],
    ) -> None:
        self._options = options
        self._runs = runs
        self._recorder = recorder
        self._announcer = announcer
        self._start = start
        self._claimer = claimer
        self._claims = Claims(options.scope(), Owner(options.name, claimer, options.lease_duration))
        self._shunned: dict[UUID, float] = {}
        self._uncertain = False
        self._look_at = 0.0
        self._look_again_at: float | None = None
        self._upkeep_at = 0.0
        self._rescue_from = 0.0
        self.idle = False
        self.loop = Loop("claimer", self._step)
        runs.changed = self.loop.wake

    def hint(self) -> None:
        """Look for work now: somebody says there is some."""
        self._look_at = 0.0
        # A sender leaves out what falls into its window, so look once more when that has passed.
        self._look_again_at = time.monotonic() + notifications.WINDOW * 1.25
        self.loop.wake()

    def shun(self, rejected: Rejected) -> None:
        """Leave a job alone that this worker has rejected, for twice its delay."""
        self._shunned[rejected.right[0]] = time.monotonic() + 2 * rejected.delay.total_seconds()

    def _step(self) -> float | None:
        try:
            if self._uncertain:
                self._give_back_unknown()
            self._upkeep()
            return self._claim()
        except OUTAGE:
            self._uncertain = True
            # Others' leases could not be renewed either; give them one lease to do so.
            self._rescue_from = time.monotonic() + self._options.lease
            raise

    def _give_back_unknown(self) -> None:
        """Give back what a claim took whose answer was lost."""
        store.release(
            store.connection(),
            [],
            keep=current_keep(),
            claimer=self._claimer,
            held=self._runs.rights(),
        )
        self._uncertain = False

    def _claim(self) -> float | None:
        room = self._runs.room()
        if room < 1:
            return self._pause_until(self._upkeep_at)
        now = time.monotonic()
        db = store.connection()
        if now >= self._look_at:
            self._claims.look(db)
            self._look_at = now + self._options.poll_interval
        claimed = self._claims.claim(db, room, self._current_shunned(now))
        for claim in claimed:
            self._take(claim)
        self.idle = not claimed and self._runs.is_idle
        if len(claimed) >= room:
            return 0
        pause = self._options.poll_interval
        if self._look_again_at is not None:
            pause = min(pause, max(self._look_again_at - time.monotonic(), 0.001))
            self._look_at, self._look_again_at = 0.0, None
        return pause

    def _pause_until(self, moment: float) -> float:
        return max(moment - time.monotonic(), 0.001)

    def _current_shunned(self, now: float) -> list[UUID]:
        self._shunned = {job: until for job, until in self._shunned.items() if until > now}
        return list(self._shunned)

    def _take(self, claim: Claim) -> None:
        job_type = registry.get(claim.name)
        timeout = timeout_of(claim, job_type)
        deadline = None if timeout is None else time.monotonic() + timeout.total_seconds()
        run = Run(JobContext(claim, job_type, timeout), deadline)
        self._runs.add(run)
        self._announcer.started(run)
        self._start(run)

    def _upkeep(self) -> None:
        """Rescue what others lost, every few seconds."""
        now = time.monotonic()
        if not self._options.maintenance or now < self._upkeep_at:
            return
        self._upkeep_at = now + min(self._options.lease / 4, 2.0)
        db = store.connection()
        store.forget_dead(db, FORGET_WORKERS_AFTER)
        while now >= self._rescue_from:
            rescued = store.rescue(db, current_keep(), limit=RESCUE_BATCH)
            for end in rescued.failed:
                logger.warning(
                    "Rescued %s %s from %s, whose lease had lapsed; it is %s",
                    end.name,
                    end.id,
                    end.worker,
                    end.status.value,
                )
                self._announcer.failed(end, LAPSED)
            notifications.notify(db, notifications.READY, rescued.woken_queues)
            ended = [end.id for end in rescued.failed if end.status.value != "READY"]
            if ended:
                notifications.notify(db, notifications.ENDED, [notifications.ids_topic(ended)])
            if len(rescued.failed) < RESCUE_BATCH:
                return


LAPSED = ErrorText.of("LeaseLost", "the lease of the worker lapsed before the attempt ended")
