"""The renewer: keeps the leases of the children's claims, and the worker's row, fresh."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID

from django.db.models import QuerySet

from django_durable import notifications, store
from django_durable.choices import JobStatus
from django_durable.execution import timed_out_run
from django_durable.jobtypes import registry
from django_durable.models import Job
from django_durable.operations import current_keep
from django_durable.store import Recorded, Right, WorkerCard
from django_durable.worker.announcer import ended_to_json
from django_durable.worker.loops import Loop, attend, logger
from django_durable.worker.options import WorkerOptions
from django_durable.worker.suspects import Losses

LONGEST_BEAT = 5.0
LOCKED_AGAIN_AFTER = 0.1
# How long at a time the row of a claim is waited for that somebody has locked.
PATIENCE = timedelta(milliseconds=200)
LEAST_PATIENCE = timedelta(milliseconds=10)
RESCUE_BATCH = 100


class DeadChild(NamedTuple):
    """Name a child whose attempts are to be recorded as lost, and until when."""

    claimer: UUID
    why: str
    until: float
    timed_out: Sequence[UUID]


class Renewer:
    """Renew by listed claims, never by name, so that nobody keeps what he does not know of."""

    def __init__(
        self,
        options: WorkerOptions,
        card: WorkerCard,
        rights: Callable[[], list[Right]],
        lost: Callable[[Right], None],
        cancelled: Callable[[list[UUID]], None],
        drain: Callable[[], None],
        announce: Callable[[dict[str, Any]], bool],
        keep_apart: Callable[[list[UUID]], None],
    ) -> None:
        self._options = options
        self._card = card
        self._rights = rights
        self._lost = lost
        self._cancelled = cancelled
        self._drain = drain
        self._announce = announce
        self._keep_apart = keep_apart
        self._losses = Losses()
        self.draining = False
        # When it ends whatever is left, if it is to end.
        self._finish_by: float | None = None
        self._dead: list[DeadChild] = []
        self._stopped: list[UUID] = []
        self._overdue: list[Right] = []
        self._untold: list[dict[str, Any]] = []
        # When it last let a job go, and from when on it knows of all that dead children held.
        self.recorded_at = 0.0
        self._rescued_from = 0.0
        self.loop = Loop("renewer", self._step)

    def child_died(self, claimer: UUID, why: str, timed_out: Sequence[UUID] = ()) -> None:
        """Record the attempts of a dead child as lost, as soon as the database takes it.

        And again for one lease: at its death the server may be in the middle of a claim of the
        child's, and others may hold its rows. What has timed out in it, and was recorded in its
        stead, may be what it died of.
        """
        until = time.monotonic() + self._options.lease
        self._dead.append(DeadChild(claimer, why, until, timed_out))
        self.loop.wake()

    def time_out(self, rights: list[Right]) -> None:
        """Record the timeouts of runs in a child that does not answer."""
        self._overdue += rights
        self.loop.wake()

    def give_back(self, claimer: UUID) -> None:
        """Give back, uncounted, what a child held that was killed because the worker stops."""
        self._stopped.append(claimer)
        self.loop.wake()

    def is_settled(self, moment: float) -> bool:
        """Tell whether what was to be recorded here is, as far as it was known at a moment."""
        is_rescued = not self._dead or self._rescued_from >= moment
        return is_rescued and not self._overdue and not self._stopped

    def untold(self) -> list[dict[str, Any]]:
        """Take what no child has announced yet of the attempts recorded here as lost."""
        untold, self._untold = self._untold, []
        return untold

    def suspects(self) -> list[UUID]:
        """Return what was lost more than once with a child; any thread may ask."""
        return list(self._losses.suspects)

    def finish(self, timeout: float) -> None:
        """Write what is left to write, delete the worker's row, and end; leases do what can't.

        What somebody has locked is waited for, for most of the time.
        """
        self._finish_by = time.monotonic() + 0.8 * timeout
        self.loop.wake()
        self.loop.join(timeout)

    def _step(self) -> float:
        store.wait_briefly(store.connection())
        self._settle()
        # It may have dropped its connection.
        db = store.connection()
        if self._finish_by is not None:
            if (self._overdue or self._stopped) and time.monotonic() < self._finish_by:
                return LOCKED_AGAIN_AFTER
            store.retire(db, self._card.incarnation)
            self.loop.stop()
            return 0
        store.wait_briefly(db)
        held: list[Right] = []
        rights = self._rights()
        if rights:
            renewed = store.renew(db, rights, self._options.lease_duration)
            to_cancel = [job for job, requested in renewed.items() if requested]
            if to_cancel:
                self._cancelled(to_cancel)
            missing = [right for right in rights if right[0] not in renewed]
            held = self._look_after(missing) if missing else []
            if held:
                # By who has sent a signal and not committed it, say. One after the other is waited
                # for: whoever waits has the row before those who would rescue it. The more there
                # are, the sooner all are looked at again.
                patience = max(PATIENCE / len(held), LEAST_PATIENCE)
                one = random.choice(held)  # noqa: S311 - no secret
                store.renew_held(db, one, self._options.lease_duration, patience)
        if store.beat(db, self._card, draining=self.draining) and not self.draining:
            self._drain()
        if held:
            return 0
        is_left = self._overdue or self._stopped
        return LOCKED_AGAIN_AFTER if is_left else min(self._options.lease / 4, LONGEST_BEAT)

    def _settle(self) -> None:
        """Record what children did not that died or don't answer."""
        started = time.monotonic()
        # One row that can't be written must not let the leases of all others lapse; what somebody
        # has locked at this moment stays for the next time.
        for dead in list(self._dead):
            with suppress(store.RowLocked):
                attend("rescue what a child held", partial(self._rescue, dead))
            if time.monotonic() > dead.until:
                self._dead.remove(dead)
        locked = store.locked_by_others(store.connection(), [right[0] for right in self._overdue])
        for right in [right for right in self._overdue if right[0] not in locked]:
            with suppress(store.RowLocked):
                attend("record a timeout", partial(self._record_timeout, right))
                self._overdue.remove(right)
        for claimer in list(self._stopped):
            with suppress(store.RowLocked):
                attend("give back what a child held", partial(self._release, claimer))
                self._stopped.remove(claimer)
        if not self._dead or not self._dead_hold_any():
            self._rescued_from = started

    def _dead_hold_any(self) -> bool:
        """Tell whether a dead child holds a job yet: others may have its row in their hands."""
        return _held_by(dead.claimer for dead in self._dead).exists()

    def _release(self, claimer: UUID) -> None:
        """Give back what a child held, but what somebody has locked, for which it raises then."""
        db = store.connection()
        held = list(_held_by([claimer]).values_list("pk", "epoch"))
        locked = store.locked_by_others(db, [right[0] for right in held], with_company=False)
        free = [right for right in held if right[0] not in locked]
        given = store.release(db, free, keep=current_keep())
        self.recorded_at = time.monotonic()
        notifications.notify(db, notifications.READY, {each.queue_name for each in given})
        if locked:
            raise store.RowLocked("somebody has locked what a child held")

    def _record_timeout(self, right: Right) -> None:
        job = Job.all_objects.filter(pk=right[0], epoch=right[1]).first()
        job_type = registry.find(job.name) if job is not None else None
        if job is None or job_type is None:
            return
        failure = timed_out_run(right, job.options, job.attempt, job_type)
        recorded = store.record_failure(store.connection(), failure, current_keep())
        self._tell(recorded, failure.error.error_class, failure.error.message)

    def _tell(self, recorded: Recorded, error_class: str, why: str) -> None:
        """Say what was recorded to who waits for it, and to a child that sends the signals."""
        db = store.connection()
        notifications.notify(db, notifications.READY, recorded.woken_queues)
        ended = [end.id for end in recorded.failed if end.status is not JobStatus.READY]
        if ended:
            notifications.notify(db, notifications.ENDED, [notifications.ids_topic(ended)])
        told = {
            "error_class": error_class,
            "why": why,
            "ended": [ended_to_json(end) for end in recorded.failed],
        }
        if recorded.failed and not self._announce(told):
            self._untold.append(told)
        self.recorded_at = time.monotonic()

    def _suspect(self, dead: DeadChild) -> None:
        """Let run one at a time what was lost twice with a child: one of it may have ended both.

        The database knows of claims that the child did not live to hear of. They are charged, too.
        """
        held = _held_by([dead.claimer]).values_list("pk", flat=True)
        suspects = self._losses.add(dead.claimer, {*held, *dead.timed_out})
        if suspects:
            logger.warning(
                "Running one at a time what was lost twice with a child: %s",
                ", ".join(str(job) for job in suspects),
            )
            self._keep_apart(suspects)

    def _rescue(self, dead: DeadChild) -> None:
        # Before any of it can be claimed again.
        self._suspect(dead)
        while True:
            rescued = store.rescue(
                store.connection(),
                current_keep(),
                claimers=[dead.claimer],
                why=dead.why,
                limit=RESCUE_BATCH,
            )
            if not rescued.failed:
                return
            for end in rescued.failed:
                logger.warning(
                    "Rescued %s %s: %s; it is %s", end.name, end.id, dead.why, end.status.value
                )
            self._tell(rescued, "LeaseLost", dead.why)

    def _look_after(self, missing: list[Right]) -> list[Right]:
        """Tell the children of claims that are lost; return those that stand, but are locked.

        One that just ended is gone from the list.
        """
        now = store.standing(store.connection(), [right[0] for right in missing])
        still = set(self._rights())
        held: list[Right] = []
        for right in missing:
            job = now.get(right[0])
            if right not in still:
                continue
            if job and job.holds(right[1]):
                held.append(right)
            elif not (job and job.ended_by(right[1])):
                self._lost(right)
        return held


def _held_by(claimers: Iterable[UUID]) -> QuerySet[Job]:
    held: QuerySet[Job] = Job.all_objects.filter(
        status=JobStatus.RUNNING, claimer__in=list(claimers)
    )
    return held
