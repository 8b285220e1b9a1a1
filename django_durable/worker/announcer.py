"""The announcer: sends Django signals and calls `on_dead_letter`, after the commits they report.

Both are users' code, so they have a thread of their own: a slow receiver delays only the next
signals, and the sweeps of retention, which this thread does in between.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from typing import Any
from uuid import UUID

from django.db import reset_queries
from django.dispatch import Signal

from django_durable import signals, store
from django_durable.choices import JobStatus
from django_durable.claimed import ClaimedRun, as_job
from django_durable.errortext import ErrorText
from django_durable.jobtypes import registry
from django_durable.models import DeadLetter, Job
from django_durable.operations import current_keep
from django_durable.store import Ended
from django_durable.worker import connections
from django_durable.worker.loops import OUTAGE, Loop, attend, logger
from django_durable.worker.options import WorkerOptions
from django_durable.worker.runs import Run, Runs
from django_durable.worker.sweeper import Sweeper

HOOK_PAUSE = 5.0
# A sweep that is to go on so soon keeps its connection.
SWEEPING = 1.0
# Hooks are users' code, and a sweep may have a tree of many thousands before it.
PATIENCE = 10.0
ENDS = (signals.job_failed, signals.job_cancelled, signals.job_dead_lettered)


class Announcer:
    """Tell what was committed, in order."""

    def __init__(self, options: WorkerOptions, runs: Runs) -> None:
        self._options = options
        self._runs = runs
        self._names = options.served_names()
        self._waiting: deque[Callable[[], None]] = deque()
        self._hooks = options.maintenance
        self._sweeper = Sweeper()
        self._sweep_at = 0.0
        self._hooks_at = 0.0
        # When users' code was last done, which may have enqueued jobs.
        self.told_at = 0.0
        self.loop = Loop("announcer", self._step, PATIENCE)

    @property
    def is_idle(self) -> bool:
        """Tell whether all that was put has been told, and no hook is known to be due."""
        return not self._waiting and not (self._hooks and time.monotonic() >= self._hooks_at)

    def _put(self, tell: Callable[[], None]) -> None:
        self._waiting.append(tell)
        self.loop.wake()

    def enqueued(self, jobs: Sequence[Job]) -> None:
        """Send `job_enqueued` for what schedules have made."""
        if jobs and signals.job_enqueued.has_listeners(Job):
            self._put(lambda: self._send_enqueued(jobs))

    def _send_enqueued(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            _send(signals.job_enqueued, job=job)

    def started(self, runs: Sequence[Run]) -> None:
        """Send `job_started`."""
        if signals.job_started.has_listeners(Job):
            for run in runs:
                self._put(partial(self._send_started, run))

    def _send_started(self, run: Run) -> None:
        _send(signals.job_started, job=run.context.job, attempt=run.context.attempt)

    def succeeded(self, runs: Sequence[Run]) -> None:
        """Send `job_succeeded`."""
        if signals.job_succeeded.has_listeners(Job):
            for run in runs:
                self._put(partial(self._send_succeeded, run))

    def _send_succeeded(self, run: Run) -> None:
        claim = run.context.claim
        _send(
            signals.job_succeeded,
            job=as_job(claim, JobStatus.SUCCESSFUL),
            attempt=claim.attempt,
            waited=(claim.claimed_at - claim.due_at).total_seconds(),
            took=run.took,
        )

    def failed(self, end: Ended, error: ErrorText, run: Run | None = None) -> None:
        """Send what a failed, timed-out or lost attempt came to."""
        if end.status is JobStatus.DEAD:
            self._hooks_at = time.monotonic()
            self.loop.wake()
        if any(signal.has_listeners(Job) for signal in ENDS):
            # Not the run, with its arguments: thousands may wait to be told of.
            self._put(partial(self._send_failed, end, error, None if run is None else run.took))

    def _send_failed(self, end: Ended, error: ErrorText, took: float | None) -> None:
        job = Job.all_objects.filter(pk=end.id).first()
        if job is None:
            return
        if end.status is not JobStatus.CANCELLED:
            _send(
                signals.job_failed,
                job=job,
                attempt=end.attempt,
                error=error,
                will_retry=end.status is JobStatus.READY,
                waited=(end.claimed_at - end.run_after).total_seconds(),
                took=(end.now - end.claimed_at).total_seconds() if took is None else took,
            )
        if end.status is JobStatus.CANCELLED:
            _send(signals.job_cancelled, job=job, reason=job.cancel_reason)
        elif end.status is JobStatus.DEAD:
            _send(signals.job_dead_lettered, job=job, dead_letter=job.dead_letter)

    def failed_elsewhere(self, message: dict[str, Any]) -> None:
        """Tell of attempts whose end the supervisor recorded, since their child could not."""
        error = ErrorText.of(message["error_class"], message["why"])
        for stored in message["ended"]:
            self.failed(ended_from_json(stored), error)

    def close(self, timeout: float) -> bool:
        """Tell what is left to tell, and end; return False if that is not done by `timeout`."""
        end = time.monotonic() + timeout
        while self._waiting:
            if time.monotonic() >= end:
                return False
            self.loop.wake()
            threading.Event().wait(0.01)
        self.loop.stop()
        return self.loop.join(max(end - time.monotonic(), 0))

    def cancelled(self, job_id: UUID) -> None:
        """Send `job_cancelled` for a claim given back after a cancel, or what starts too late."""
        if signals.job_cancelled.has_listeners(Job):
            self._put(lambda: self._send_cancelled(job_id))

    def _send_cancelled(self, job_id: UUID) -> None:
        job = Job.all_objects.filter(pk=job_id).first()
        if job is not None:
            _send(signals.job_cancelled, job=job, reason=job.cancel_reason)

    def recorded(self, context: ClaimedRun, keys: Sequence[signals.CheckpointKey]) -> None:
        """Send `step_recorded`; whoever calls this knows that somebody listens."""
        self._put(lambda: self._send_recorded(context, keys))

    def _send_recorded(self, context: ClaimedRun, keys: Sequence[signals.CheckpointKey]) -> None:
        for step in signals.find_steps(context.job, keys):
            _send(signals.step_recorded, job=context.job, step=step)

    def parked(self, run: Run) -> None:
        """Send `job_parked`."""
        if signals.job_parked.has_listeners(Job):
            attempt = run.context.attempt
            self._put(
                lambda: _send(
                    signals.job_parked,
                    job=as_job(run.context.claim, JobStatus.WAITING),
                    attempt=attempt,
                )
            )

    def lost(self, run: Run) -> None:
        """Send `lease_lost`."""
        self._put(
            lambda: _send(signals.lease_lost, job=run.context.job, attempt=run.context.attempt)
        )

    def _step(self) -> float | None:
        while self._waiting:
            # Looked at before it is taken away, so that an outage repeats it.
            try:
                self._waiting[0]()
            except OUTAGE:
                raise
            except Exception:  # noqa: BLE001 - whatever it is
                # Not again and again: the next ones are to be told, too.
                logger.exception("A signal could not be sent")
                connections.drop()
            self.told_at = time.monotonic()
            self._waiting.popleft()
            # With DEBUG, Django keeps the text of every query; there may be thousands in this step.
            reset_queries()
        pause = self._keep_up() if self._hooks else None
        if pause is None or pause > SWEEPING:
            # It is needed seldom, so that it is not one of those that a worker holds.
            connections.drop()
        return pause

    def _keep_up(self) -> float:
        """Call hooks and sweep, each if it is time; return how long to wait for the next."""
        due_at = self._hooks_at
        if time.monotonic() >= due_at and self._call_hooks() and self._hooks_at == due_at:
            # None has come up meanwhile.
            self._hooks_at = time.monotonic() + HOOK_PAUSE
        if time.monotonic() >= self._sweep_at:
            rest = self._sweeper.step(is_busy=not self._runs.is_idle)
            self._sweep_at = time.monotonic() + (HOOK_PAUSE if rest is None else rest)
        return max(min(self._hooks_at, self._sweep_at) - time.monotonic(), 0.0)

    def _call_hooks(self) -> bool:
        """Call the hooks that are due; return False if there may be more."""
        db = store.connection()
        letters = store.take_hooks(db, self._names, 2 * self._options.lease_duration)
        if letters:
            store.keep_dead(db, letters, current_keep())
        for letter in letters:
            # Each by itself: one whose job can't be read stays due, and the others are called.
            attend("call a hook", partial(self._see_to_hook, letter))
            self.told_at = time.monotonic()
        return not letters

    def _see_to_hook(self, pk: int) -> None:
        letter = DeadLetter.all_objects.filter(pk=pk).select_related("job").first()
        if letter is not None:
            self._call_hook(letter)
            connections.clean()
            store.settle_hooks(store.connection(), [pk])

    def _call_hook(self, letter: Any) -> None:
        job_type = registry.find(letter.job.name)
        hook = job_type.options.on_dead_letter if job_type else None
        if hook is None:
            return
        try:
            hook(letter)
        except BaseException:  # noqa: BLE001 - users' code
            logger.exception("on_dead_letter of %s failed for %s", letter.job.name, letter.job_id)


def _send(signal: Signal, **named: Any) -> None:
    try:
        signals.send(signal, **named)
    except BaseException:  # noqa: BLE001 - users' code
        # More than an Exception, which it would have taken.
        logger.exception("A receiver of a signal failed, and those after it heard nothing")


def ended_to_json(end: Ended) -> dict[str, Any]:
    """Write down the end of an attempt for a message between processes."""
    moments = ("claimed_at", "run_after", "now")
    return {
        **{key: value for key, value in vars(end).items() if key not in moments},
        "id": str(end.id),
        **{key: getattr(end, key).isoformat() for key in moments},
    }


def ended_from_json(stored: dict[str, Any]) -> Ended:
    """Read what `ended_to_json` wrote."""
    moments = ("claimed_at", "run_after", "now")
    return Ended(
        **{
            **stored,
            "id": UUID(stored["id"]),
            "status": JobStatus(stored["status"]),
            **{key: datetime.fromisoformat(stored[key]) for key in moments},
        }
    )
