"""The `JobContext`: what a job with `takes_context=True` receives."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any
from uuid import UUID

from asgiref.sync import sync_to_async

from django_durable import births, payloads, store, waiting
from django_durable.choices import UNDO, StepKind, StepStatus
from django_durable.claimed import ClaimedRun
from django_durable.current import current
from django_durable.exceptions import (
    CancelRequested,
    ClaimLost,
    DurableError,
)
from django_durable.excursions import in_thread
from django_durable.groups import decisive
from django_durable.journal import Known
from django_durable.steps import AtomicStepRun, StepRun
from django_durable.store import Checkpoint
from django_durable.underway import Rank

if TYPE_CHECKING:
    from django_durable.jobtypes import Call, JobType
    from django_durable.models import Job

_logger = logging.getLogger("django_durable.job")
_nowhere = logging.getLogger("django_durable.replay")
_nowhere.disabled = True


class JobContext(ClaimedRun):
    """Give a running job what it may know and do: the durable verbs, and facts about itself.

    A verb records a checkpoint under its name before it returns. The same name in a later run of
    the job returns what is recorded. A verb raises `StopRun` (a `BaseException`) when the run is
    to end: parked, cancelled, timed out, or its claim lost. Inside a step, or in an `atomic()`
    that the job opened, it raises `DurableError`.
    """

    # Waits of at most so many seconds are waited for in place; longer ones park the run.
    MOMENT = 1.0

    # Facts.

    @property
    def attempt(self) -> int:
        """Return the number of this attempt, from 1."""
        return self.claim.attempt

    @property
    def deadline(self) -> datetime | None:
        """Return when this stretch times out by the database's clock, or None."""
        return None if self._timeout is None else self.claim.claimed_at + self._timeout

    @property
    def is_async(self) -> bool:
        """Tell whether the run belongs on an event loop; an undo job's never does."""
        return self.job_type.is_async and UNDO not in self.claim.metadata

    @property
    def logger(self) -> logging.LoggerAdapter[logging.Logger]:
        """Return a logger whose records carry the job's id, name, queue and attempt.

        It is silent while the run replays what an earlier one has done.
        """
        quiet = self.options.takes_context and self.journal.is_replaying()
        return self._silent_logger if quiet else self._logger

    @cached_property
    def _logger(self) -> logging.LoggerAdapter[logging.Logger]:
        return self._adapter(_logger)

    @cached_property
    def _silent_logger(self) -> logging.LoggerAdapter[logging.Logger]:
        return self._adapter(_nowhere)

    def _adapter(self, logger: logging.Logger) -> logging.LoggerAdapter[logging.Logger]:
        claim = self.claim
        return logging.LoggerAdapter(
            logger,
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

    # Steps.

    def step(self, name: str, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call the function once and for all: return its value, which is recorded.

        A recorded success is returned without calling; an error that is permanent is recorded and
        raised again. Any other error records nothing and is the attempt's, unless the function has
        a policy (`@step`). A crash between the call and the record repeats the call.
        """
        return StepRun(self, name, func, args, kwargs).run()

    def atomic_step(self, name: str, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Do what `step` does with the function's writes and the record in one transaction.

        On the job's database the function thus happens exactly once. It may not pause for longer
        than a lease between two statements: the server ends the transaction then.
        """
        return AtomicStepRun(self, name, func, args, kwargs).run()

    async def astep(self, name: str, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Do what `step` does, from async code; the function may be async or plain."""
        return await StepRun(self, name, func, args, kwargs).arun()

    async def aatomic_step(
        self, name: str, func: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        """Do what `atomic_step` does, from async code; the function runs in a thread."""
        return await AtomicStepRun(self, name, func, args, kwargs).arun()

    def now(self, name: str) -> datetime:
        """Return the database's time, recorded."""
        moment: datetime = self._value(StepKind.VALUE, name, self._ask_clock)
        return moment

    def _ask_clock(self) -> datetime:
        return self.ask(lambda: store.now(store.connection()))

    async def anow(self, name: str) -> datetime:
        """Do what `now` does, from async code."""
        moment: datetime = await self._in_thread(self.now, name)
        return moment

    def patched(self, name: str) -> bool:
        """Tell whether this run is to take the new way of changed code; the answer is recorded.

        False if the job has gone further than here with the old code, else True.
        """
        return self._patched(name, anywhere=False)

    async def apatched(self, name: str) -> bool:
        """Do what `patched` does, from async code.

        Another task may be about to come to what is recorded for it. So it is False only if
        something is left unreached when nothing has begun or ended as long as a park would wait.
        """
        under_way = self.under_way
        with under_way.one():
            while await sync_to_async(self._would_deny)(name) and not await under_way.rest():
                pass
            anywhere = under_way.has_branched
            return await sync_to_async(self._patched)(name, anywhere=anywhere)

    def _patched(self, name: str, *, anywhere: bool) -> bool:
        def answer() -> bool:
            return not self.journal.has_later(anywhere=anywhere)

        return bool(self._value(StepKind.PATCH, name, answer))

    def _would_deny(self, name: str) -> bool:
        """Tell whether the answer about a patch would be new, and False."""
        self.guard()
        if self.journal.has(StepKind.PATCH, name):
            return False
        return self.journal.has_later(anywhere=self.under_way.has_branched)

    def _value(self, kind: StepKind, name: str, make: Callable[[], Any]) -> Any:
        known = self.enter(kind, name)
        if known is None:
            known = Known(self.journal.next_ordinal(), StepStatus.SUCCEEDED, make())
            text = payloads.encode(known.value, where=name, limit=None)
            self.record(Checkpoint(self.right, kind, name, known.ordinal, known.status, value=text))
            self.journal.keep(kind, name, known)
        return known.value

    # Waits.

    def sleep(self, name: str, until: timedelta | datetime) -> None:
        """Wait for a duration or until an aware moment; a crash does not start it anew."""
        left = waiting.begin_sleep(self, name, until)
        if left is not None:
            if left > self.MOMENT:
                raise self.refusal()
            self.pause(left)
            waiting.end_sleep(self, name)

    async def asleep(self, name: str, until: timedelta | datetime) -> None:
        """Do what `sleep` does, from async code; steps that are under way end before a park."""
        rank = Rank.SLEEP
        async with self.under_way.wait(rank, (StepKind.SLEEP.value, name)) as since:
            left = await sync_to_async(waiting.begin_sleep)(self, name, until, since, rank)
            if left is None:
                return
            while left > self.MOMENT:
                since = await self.under_way.no_step(left)
                left = await sync_to_async(waiting.go_on_sleeping)(self, name, since, rank)
            # For so short a while nothing else parks either.
            with self.under_way.one():
                await self.apause(left)
                await sync_to_async(waiting.end_sleep)(self, name)

    def wait_for_signal(
        self, name: str, timeout: float | timedelta | None = None, signal: str | None = None
    ) -> Any:
        """Return the payload of the signal called `signal` (default: `name`), sent before or yet.

        Raises `SignalTimeout` when `timeout` (seconds or timedelta, from the first arrival here)
        has passed without one, and `ValueError` for a negative one.
        """
        wait = waiting.begin_signal(self, name, timeout, signal)
        if not waiting.look_for_signal(self, wait):
            raise self.refusal()
        return wait.answer()

    async def await_for_signal(
        self, name: str, timeout: float | timedelta | None = None, signal: str | None = None
    ) -> Any:
        """Do what `wait_for_signal` does, from async code.

        While steps are under way it looks about every second, and parks once they have ended.
        """
        rank, wanted = Rank.SIGNAL, name if signal is None else signal
        async with self.under_way.wait(rank, (StepKind.SIGNAL.value, name), wanted) as since:
            wait = await sync_to_async(waiting.begin_signal)(self, name, timeout, signal)
            while not await sync_to_async(waiting.look_for_signal)(self, wait, since, rank):
                since = await self.under_way.no_step(self.MOMENT)
            return wait.answer()

    def gather(self, jobs: Iterable[Job], return_exceptions: bool = False) -> list[Any]:
        """Return the results of jobs in order, once all have ended.

        The first `JobFailed` or `JobCancelled` is raised, or stands in the list with
        `return_exceptions`. Raises `DurableError` for the job itself or one that it belongs to.
        """
        found = waiting.begin_gather(self, awaited := list(jobs))
        if not waiting.look_for_ends(self, awaited, found):
            raise self.refusal()
        return self._in_order(awaited, found, return_exceptions=return_exceptions)

    async def agather(self, jobs: Iterable[Job], return_exceptions: bool = False) -> list[Any]:
        """Do what `gather` does, from async code.

        While steps are under way it looks about every second, and parks once they have ended.
        """
        async with self.under_way.wait(Rank.JOBS) as since:
            found = await sync_to_async(waiting.begin_gather)(self, awaited := list(jobs))
            while not await sync_to_async(waiting.look_for_ends)(self, awaited, found, since):
                since = await self.under_way.no_step(self.MOMENT)
            return await sync_to_async(self._in_order)(
                awaited, found, return_exceptions=return_exceptions
            )

    def _in_order(
        self, jobs: Sequence[Job], ended: dict[UUID, Job], *, return_exceptions: bool
    ) -> list[Any]:
        # Dead letters are read for it.
        return self.ask(
            lambda: waiting.in_order(jobs, ended, return_exceptions=return_exceptions), len(jobs)
        )

    # Children.

    def start(self, name: str, job_type: JobType | Call, *args: Any, **kwargs: Any) -> Job:
        """Make or re-attach a child job; `job_type.using(...)` is accepted.

        Raises `DepthExceeded`, and stores nothing, below `DURABLE_MAX_DEPTH`.
        """
        return births.start_many(self, [name], [(births.as_call(job_type), args, kwargs)])[0]

    async def astart(self, name: str, job_type: JobType | Call, *args: Any, **kwargs: Any) -> Job:
        """Do what `start` does, from async code."""
        job: Job = await self._in_thread(self.start, name, job_type, *args, **kwargs)
        return job

    def start_many(
        self, name: str, job_type: JobType | Call, calls: Iterable[Sequence[Any]]
    ) -> list[Job]:
        """Make or re-attach children `name-0`, `name-1`, ... from calls as in `enqueue_many`."""
        return births.start_many(self, *births.numbered(name, job_type, calls))

    async def astart_many(
        self, name: str, job_type: JobType | Call, calls: Iterable[Sequence[Any]]
    ) -> list[Job]:
        """Do what `start_many` does, from async code."""
        jobs: list[Job] = await self._in_thread(self.start_many, name, job_type, list(calls))
        return jobs

    def call(self, name: str, job_type: JobType | Call, *args: Any, **kwargs: Any) -> Any:
        """Start a child and return its result."""
        return self.gather([self.start(name, job_type, *args, **kwargs)])[0]

    async def acall(self, name: str, job_type: JobType | Call, *args: Any, **kwargs: Any) -> Any:
        """Do what `call` does, from async code."""
        return (await self.agather([await self.astart(name, job_type, *args, **kwargs)]))[0]

    # Cancelling and progress.

    async def acheck_cancelled(self) -> None:
        """Do what `check_cancelled` does, from async code."""
        await self._in_thread(self.check_cancelled)

    def progress(self, done: float, total: float | None = None, message: str = "") -> None:
        """Show how far the job is, as `job.progress`; one short commit.

        Ends the run as `check_cancelled` does. Does nothing while the run replays.
        """
        self.raise_if_stopped()
        if self.options.takes_context and self.journal.is_replaying():
            return
        text = json.dumps({"done": done, "total": total, "message": message}, allow_nan=False)
        answer = self.ask(
            lambda: store.show_progress(store.connection(), self.right, text), is_write=True
        )
        if answer is None:
            self.stop(ClaimLost("another claim has taken the job"))
        elif answer:
            self.cancel_requested = True
            self.stop(CancelRequested())
        self.raise_if_stopped()

    async def aprogress(self, done: float, total: float | None = None, message: str = "") -> None:
        """Do what `progress` does, from async code."""
        await self._in_thread(self.progress, done, total, message)

    # What follows is for the verbs.

    async def _in_thread(self, verb: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Do a plain verb from async code; a step's wait for its next try does not park beside it.

        For what follows such a verb is most often a wait.
        """
        with self.under_way.one():
            return await in_thread(verb)(*args, **kwargs)

    def refusal(self) -> DurableError:
        """Return the error of a plain verb that would have to park beside async steps."""
        return DurableError(
            "a plain verb can't wait while async steps of the run are under way: use its async twin"
        )

    def is_retryable(self, error: BaseException) -> bool:
        """Tell whether an error may be mended by another try, by the table of outcomes."""
        return self.options.mends(decisive(error, self.options))

    # What follows is for the worker.

    @contextmanager
    def running(self) -> Iterator[None]:
        """Make this the current context, if its function is a workflow."""
        token = current.set(self if self._is_workflow else None)
        try:
            yield
        finally:
            current.reset(token)

    @property
    def _is_workflow(self) -> bool:
        return self.options.takes_context
