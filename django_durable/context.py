"""The `JobContext`: what a job with `takes_context=True` receives."""

from __future__ import annotations

import json
import logging
import time
from datetime import datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any

from asgiref.sync import sync_to_async

from django_durable import store
from django_durable.choices import JobStatus
from django_durable.exceptions import CancelRequested, ClaimLost, RunTimedOut, StopRun
from django_durable.store import Claim, Right

if TYPE_CHECKING:
    from django_durable.jobtypes import JobType
    from django_durable.models import Job

_logger = logging.getLogger("django_durable.job")


class JobContext:
    """Give a running job what it may know and do about itself."""

    def __init__(self, claim: Claim, job_type: JobType, timeout: timedelta | None) -> None:
        self.claim = claim
        self.job_type = job_type
        self.options = job_type.options
        self.right: Right = (claim.id, claim.epoch)
        self.cancel_requested = False
        self._timeout = timeout
        self._stop: StopRun | None = None
        self.started = time.monotonic()

    @property
    def attempt(self) -> int:
        """Return the number of this attempt, from 1."""
        return self.claim.attempt

    @property
    def deadline(self) -> datetime | None:
        """Return when this stretch times out by the database's clock, or None."""
        return None if self._timeout is None else self.claim.claimed_at + self._timeout

    @cached_property
    def job(self) -> Job:
        """Return the job as it was claimed."""
        return as_job(self.claim)

    @cached_property
    def logger(self) -> logging.LoggerAdapter[logging.Logger]:
        """Return a logger whose records carry the job's id, name, queue and attempt."""
        claim = self.claim
        return logging.LoggerAdapter(
            _logger,
            {
                "job_id": str(claim.id),
                "job_name": claim.name,
                "queue_name": claim.queue_name,
                "attempt": claim.attempt,
            },
        )

    @property
    def delivery_key(self) -> str:
        """Return the key to hand to outside services: a replay keeps that of what it replays."""
        return str(self.claim.delivery_id or self.claim.id)

    def check_cancelled(self) -> None:
        """Raise `CancelRequested` if somebody asked to cancel this job.

        Ends the run, too, if its claim is lost or its timeout passed.
        """
        self.raise_if_stopped()
        now = store.standing(store.connection(), [self.claim.id]).get(self.claim.id)
        if now is None or not now.holds(self.claim.epoch):
            self.stop(ClaimLost("another claim has taken the job"))
        elif now.cancel_requested:
            self.cancel_requested = True
            self.stop(CancelRequested())
        self.raise_if_stopped()

    async def acheck_cancelled(self) -> None:
        """Do what `check_cancelled` does, from async code."""
        await sync_to_async(self.check_cancelled)()

    def progress(self, done: float, total: float | None = None, message: str = "") -> None:
        """Show how far the job is, as `job.progress`; one short commit.

        Ends the run as `check_cancelled` does.
        """
        self.raise_if_stopped()
        text = json.dumps({"done": done, "total": total, "message": message}, allow_nan=False)
        answer = store.show_progress(store.connection(), self.right, text)
        if answer is None:
            self.stop(ClaimLost("another claim has taken the job"))
        elif answer:
            self.cancel_requested = True
            self.stop(CancelRequested())
        self.raise_if_stopped()

    async def aprogress(self, done: float, total: float | None = None, message: str = "") -> None:
        """Do what `progress` does, from async code."""
        await sync_to_async(self.progress)(done, total, message)

    # What follows is for the worker.

    def stop(self, why: StopRun) -> None:
        """End the run at its next durable verb, for the first reason that was given."""
        if self._stop is None:
            self._stop = why

    @property
    def is_abandoned(self) -> bool:
        """Tell whether the outcome of the run counts no more."""
        return isinstance(self._stop, ClaimLost | RunTimedOut)

    def raise_if_stopped(self) -> None:
        """Raise what `stop` said, if it did."""
        if self._stop is not None:
            raise self._stop


def as_job(claim: Claim, status: str = JobStatus.RUNNING, **changed: Any) -> Job:
    """Build the model instance of a claimed job from what the claim brought along."""
    from django_durable import payloads
    from django_durable.exceptions import PayloadDecodeError
    from django_durable.fields import Undecodable
    from django_durable.models import Job

    def decoded(text: str) -> Any:
        try:
            return payloads.decode(text)
        except PayloadDecodeError as error:
            return Undecodable(text, str(error))

    job = Job(
        id=claim.id,
        root_id=claim.root_id,
        parent_id=claim.parent_id,
        depth=claim.depth,
        name=claim.name,
        queue_name=claim.queue_name,
        requires=claim.requires,
        priority=claim.priority,
        status=status,
        args=decoded(claim.args),
        kwargs=decoded(claim.kwargs),
        metadata=claim.metadata,
        options=claim.options,
        attempt=claim.attempt,
        max_attempts=claim.max_attempts,
        rejections=claim.rejections,
        resumed=claim.resumed,
        run_after=claim.run_after,
        enqueued_at=claim.enqueued_at,
        started_at=claim.started_at,
        claimed_at=claim.claimed_at,
        epoch=claim.epoch,
        delivery_id=claim.delivery_id,
        idempotency_key=claim.idempotency_key,
        concurrency_key=claim.concurrency_key,
        **changed,
    )
    job._state.adding = False
    job._state.db = store.connection().alias
    return job
