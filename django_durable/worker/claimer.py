"""The claimer: takes what fits the free slots, and gives back what it can't account for."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

from django_durable import notifications, store
from django_durable.choices import DeathReason
from django_durable.context import JobContext
from django_durable.errortext import ErrorText
from django_durable.exceptions import PayloadDecodeError
from django_durable.execution import backoff_of, timeout_of
from django_durable.jobtypes import registry
from django_durable.operations import current_keep
from django_durable.store import Claim, Claims, Failure, Owner, Recorded
from django_durable.worker import connections
from django_durable.worker.announcer import Announcer
from django_durable.worker.loops import OUTAGE, Loop, attend, logger
from django_durable.worker.options import WorkerOptions
from django_durable.worker.recorder import Recorder
from django_durable.worker.runs import Run, Runs
from django_durable.worker.suspects import AGAIN, Suspects
from django_durable.worker.timekeeper import Timekeeper

RESCUE_BATCH = 100
LATE_BATCH = 200
DROP_BATCH = 1000
# How long a claimer with a backlog waits for half of its slots before it takes fewer.
GATHER = 0.005
# So many at a time cost not much more than one.
FEW = 20
# When to ask again after others have stood in the way: so soon, then each time twice as late.
RETRY = 0.01
FORGET_WORKERS_AFTER = timedelta(days=1)
# A sender leaves out the hints that fall into its window; by then it has passed.
SECOND_LOOK = notifications.WINDOW * 1.25


class Claimer:
    """Claim jobs whenever a slot is free and a job may be due."""

    def __init__(
        self,
        options: WorkerOptions,
        claimer: UUID,
        runs: Runs,
        recorder: Recorder,
        announcer: Announcer,
        start: Callable[[Sequence[Run]], list[Run]],
    ) -> None:
        self._options = options
        self._runs = runs
        self._recorder = recorder
        self._announcer = announcer
        self._start = start
        self._claimer = claimer
        self._lease = options.lease_duration
        self._claims = Claims(options.scope(), Owner(options.name, claimer, self._lease))
        job_types = [registry.get(name) for name in options.served_names()]
        self._has_deadlines = any(kind.options.start_within for kind in job_types)
        self._timekeeper = Timekeeper(options, announcer) if options.maintenance else None
        self._shunned: dict[UUID, float] = {}
        self._suspects = Suspects()
        self._uncertain = False
        # Written by whoever hints, and by the claimer alone: neither can undo what the other says.
        self._hinted_at = 0.0
        self._looked_at = -1.0
        self._upkeep_at = 0.0
        self._rescue_from = 0.0
        self._gather_until = 0.0
        self._found_nothing = False
        self._retry = RETRY
        # The first and the last of the looks that have found nothing due while nothing ran; None
        # as soon as one has not.
        self.vain_looks: tuple[float, float] | None = None
        self.loop = Loop("claimer", self._step)
        runs.changed = self.loop.wake

    def hint(self) -> None:
        """Look for work now, and once more soon: somebody says there is some."""
        self._hinted_at = time.monotonic()
        self.loop.wake()

    def shun(self, job: UUID, seconds: float) -> None:
        """Leave a job alone for so long."""
        self._shunned[job] = time.monotonic() + seconds

    def keep_apart(self, jobs: Sequence[UUID]) -> None:
        """Run these jobs one at a time: one of them may be what ended a child."""
        self._suspects.add(jobs)

    def _step(self) -> float | None:
        try:
            store.relax_commits(store.connection())
            if self._uncertain:
                attend("give back what was claimed for nobody", self._give_back_unknown)
            self._upkeep()
            if self._timekeeper is not None:
                self._timekeeper.step()
            return self._claim()
        except Exception as error:
            self._uncertain = True
            self.vain_looks = None
            if isinstance(error, OUTAGE):
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
        # Asked before the claim: a job that ends during it may have left new ones.
        was_idle = self._runs.is_idle
        room = self._runs.room()
        now = time.monotonic()
        gather = self._gather_until - now
        half = max(1, self._runs.slots // 2)
        if room < 1 or (gather > 0 and room < half):
            # While there is more than fits, half the slots at a time cost half the commits.
            self._runs.wanted = half if gather > 0 else 1
            return gather if gather > 0 else self._pause(self._options.poll_interval)
        self._runs.wanted = None
        if self._options.processes == 1:
            # The rest is claimed while these run; other children would do that anyway.
            room = min(room, max(half, FEW))
        db = store.connection()
        is_asked = self._options.batch and self._found_nothing
        looked = now >= (self._claims.look_from if is_asked else self._next_look())
        if looked:
            self._looked_at = now
            self._claims.look(db)
        sees_all = looked and now >= self._claims.full_from
        held_back = self._suspects.held_back(self._runs.rights)
        claimed = self._claims.claim(db, room, [*self._current_shunned(now), *held_back])
        recorded = self._recorded(claimed)
        self._take(claimed, recorded)
        if claimed:
            self._suspects.claimed()
        self._note_look(now, in_vain=was_idle and not claimed and sees_all)
        self._found_nothing = not claimed
        if len(claimed) >= room:
            self._gather_until = time.monotonic() + GATHER
        if claimed:
            # Or fewer: others may have held the rest for the moment of their own claims.
            return 0
        if self._has_deadlines and self._claims.incomplete and self._cancel_late():
            # They stood before others, and a claim leaves them alone.
            return 0
        return self._pause(self._next_claim(now) - time.monotonic())

    def _note_look(self, now: float, *, in_vain: bool) -> None:
        """Note whether nothing is due, as far as this child can tell."""
        is_behind = self._timekeeper is not None and self._timekeeper.behind
        # What a rate holds back is due, and will start here.
        is_paced = self._claims.opens_at < math.inf
        is_left = self._claims.incomplete or self._suspects.are_waiting
        if in_vain and not (is_behind or is_paced or is_left):
            self.vain_looks = (self.vain_looks or (now, now))[0], now
        else:
            self.vain_looks = None

    def _next_claim(self, now: float) -> float:
        """Return when to claim again after a claim of nothing."""
        until = min(self._next_look(), self._claims.opens_at)
        if self._claims.incomplete:
            # Others were deciding over what is due; what they leave has no other hint.
            until = min(until, time.monotonic() + self._retry)
            self._retry = min(2 * self._retry, self._options.poll_interval)
        else:
            self._retry = RETRY
        if self._claims.full_from > now:
            until = min(until, self._claims.full_from)
        if self._suspects.are_waiting:
            until = min(until, time.monotonic() + AGAIN)
        return until

    def _next_look(self) -> float:
        """Return when to look for lanes that are new, or that were empty."""
        wanted = self._looked_at + self._options.poll_interval
        if self._looked_at <= self._hinted_at:
            wanted = self._hinted_at
        elif self._looked_at < self._hinted_at + SECOND_LOOK:
            wanted = self._hinted_at + SECOND_LOOK
        return max(wanted, self._claims.look_from)

    def _pause(self, longest: float) -> float:
        """Return how long to wait, unless there is something to rescue or to fire before."""
        if self._timekeeper is not None:
            upkeep_at = min(self._upkeep_at, self._timekeeper.next_at)
            longest = min(longest, upkeep_at - time.monotonic())
        return max(longest, 0.001)

    def _current_shunned(self, now: float) -> list[UUID]:
        # Other threads add to it meanwhile.
        for job, until in list(self._shunned.items()):
            if until <= now:
                self._shunned.pop(job, None)
        return list(self._shunned)

    def _recorded(self, claimed: list[Claim]) -> dict[UUID, list[Any]]:
        """Read the checkpoints of the workflows among the claimed jobs, all in one query."""
        workflows = [
            claim.id for claim in claimed if registry.get(claim.name).options.takes_context
        ]
        if not workflows:
            return {}
        try:
            return store.read_checkpoints(store.connection(), workflows)
        except OUTAGE:
            raise
        except Exception:  # noqa: BLE001 - told of
            # Each run reads its own then, and the one whose can't be read fails.
            logger.exception("The checkpoints of what was claimed can't be read together")
            connections.drop()
            return {}

    def _take(self, claimed: Sequence[Claim], recorded: Mapping[UUID, list[Any]]) -> None:
        """Enter the claims and start their runs."""
        runs: list[Run] = []
        for claim in claimed:
            try:
                runs.append(self._run_of(claim, recorded.get(claim.id)))
            except Exception as error:  # noqa: BLE001 - it is recorded
                self._bury(claim, error)
        self._runs.add(runs)
        self._announcer.started(runs)
        left = self._start(runs)
        if left:
            # These claims are of the unknown now, which are given back.
            self._runs.forget(left)
            for run in left:
                self._runs.leave(run)
            raise RuntimeError("no thread can be had")

    def _run_of(self, claim: Claim, recorded: list[Any] | None) -> Run:
        job_type = registry.get(claim.name)
        # Read now: what can't be would be found out only when the run has failed.
        for name in ("options", "metadata"):
            if not isinstance(getattr(claim, name), dict):
                raise PayloadDecodeError(f"the {name} are no dict that can be read")
        timeout = timeout_of(claim.options, job_type)
        if claim.options:
            backoff_of(claim.options, job_type)
        deadline = None if timeout is None else time.monotonic() + timeout.total_seconds()
        context = JobContext(
            claim,
            job_type,
            timeout,
            lease=self._lease,
            record=self._recorder.record_checkpoints,
            lend=self._recorder.lend,
            recorded=recorded,
            tell=self._announcer.recorded,
        )
        return Run(context, deadline)

    def _bury(self, claim: Claim, error: Exception) -> None:
        """Let a job die whose row says what no worker can read, rather than claim it for ever."""
        failure = Failure(
            (claim.id, claim.epoch),
            ErrorText.from_exception(error),
            retryable=False,
            reason=DeathReason.UNDECODABLE,
        )
        self._tell(store.record_failure(store.connection(), failure, current_keep()), failure.error)

    def _tell(self, recorded: Recorded, error: ErrorText) -> None:
        """Say what was recorded, to who listens for signals and to who waits in other processes."""
        db = store.connection()
        for end in recorded.failed:
            self._announcer.failed(end, error)
        notifications.notify(db, notifications.READY, recorded.woken_queues)
        ended = [end.id for end in recorded.failed if end.status.value != "READY"]
        if ended:
            notifications.notify(db, notifications.ENDED, [notifications.ids_topic(ended)])

    def _cancel_late(self) -> int:
        """Cancel a batch of what has not started in time; return how many that were."""
        db = store.connection()
        ended, woken = store.cancel_late(db, keep=current_keep(), limit=LATE_BATCH)
        for job in ended:
            self._announcer.cancelled(job)
        notifications.notify(db, notifications.READY, woken)
        if ended:
            notifications.notify(db, notifications.ENDED, [notifications.ids_topic(ended)])
        return len(ended)

    def _upkeep(self) -> None:
        """Rescue what others lost, every few seconds."""
        now = time.monotonic()
        if not self._options.maintenance or now < self._upkeep_at:
            return
        if 0 < self._upkeep_at < now - self._options.lease / 2:
            # This process was frozen, as others may have been: let them renew first.
            self._rescue_from = now + self._options.lease
        self._upkeep_at = now + min(self._options.lease / 4, 2.0)
        # One row that can't be written must keep nobody from being rescued, or from a claim.
        attend("forget what is over", self._forget)
        attend("cancel what starts too late", self._cancel_late_of_many)
        if now >= self._rescue_from:
            attend("rescue what others lost", self._rescue)

    def _forget(self) -> None:
        db = store.connection()
        store.forget_dead(db, FORGET_WORKERS_AFTER)
        while store.drop_starts(db, DROP_BATCH) == DROP_BATCH:
            pass

    def _cancel_late_of_many(self) -> None:
        if self._cancel_late() == LATE_BATCH:
            # Not all at once: claims go on in between.
            self._upkeep_at = time.monotonic()

    def _rescue(self) -> None:
        db = store.connection()
        while True:
            rescued = store.rescue(
                db,
                current_keep(),
                limit=RESCUE_BATCH,
                grace=self._options.lease_duration,
            )
            for end in rescued.failed:
                logger.warning(
                    "Rescued %s %s from %s, whose lease had lapsed; it is %s",
                    end.name,
                    end.id,
                    end.worker,
                    end.status.value,
                )
            self._tell(rescued, LAPSED)
            if len(rescued.failed) < RESCUE_BATCH:
                return


LAPSED = ErrorText.of("LeaseLost", "the lease of the worker lapsed before the attempt ended")
