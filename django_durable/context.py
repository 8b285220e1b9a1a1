"""The `JobContext`: what a job with `takes_context=True` receives."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from datetime import datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

from asgiref.sync import sync_to_async

from django_durable import births, copies, faults, notifications, payloads, signals, store, waiting
from django_durable.choices import UNDO, JobStatus, StepKind, StepStatus
from django_durable.conf import conf
from django_durable.current import current
from django_durable.exceptions import (
    CancelRequested,
    ClaimLost,
    DurableError,
    RunParked,
    RunTimedOut,
    StopRun,
)
from django_durable.excursions import in_thread
from django_durable.groups import decisive
from django_durable.journal import Journal, Known
from django_durable.step_policy import refuse_in_step
from django_durable.steps import MOST_RERUNS, AtomicStepRun, StepRun
from django_durable.store import Checkpoint, Claim, Right, Written
from django_durable.underway import Rank, StepsUnderWay

if TYPE_CHECKING:
    from django_durable.jobtypes import Call, JobType
    from django_durable.models import Job

Recording = Callable[[Sequence[Checkpoint]], Written]
Lending = Callable[[], AbstractContextManager[bool]]
T = TypeVar("T")
Telling = Callable[["JobContext", Sequence[signals.CheckpointKey]], None]
_logger = logging.getLogger("django_durable.job")
_nowhere = logging.getLogger("django_durable.replay")
_nowhere.disabled = True
# So many jobs are read as fast as one; others wait meanwhile for the connection that is shared.
FEW = 10


class JobContext:
    """Give a running job what it may know and do: the durable verbs, and facts about itself.

    A verb records a checkpoint under its name before it returns. The same name in a later run of
    the job returns what is recorded. A verb raises `StopRun` (a `BaseException`) when the run is
    to end: parked, cancelled, timed out, or its claim lost. Inside a step, or in an `atomic()`
    that the job opened, it raises `DurableError`.
    """

    # Waits of at most so many seconds are waited for in place; longer ones park the run.
    MOMENT = 1.0

    # How every run begins.
    cancel_requested = False
    is_parked = False
    # Whether it has come to a verb.
    has_begun = False
    _stop: StopRun | None = None
    _stopped: threading.Event | None = None
    _atomic_depth = 0

    def __init__(
        self,
        claim: Claim,
        job_type: JobType,
        timeout: timedelta | None,
        lease: timedelta | None = None,
        record: Recording | None = None,
        lend: Lending | None = None,
        recorded: Iterable[tuple[Any, ...]] | None = None,
        tell: Telling | None = None,
    ) -> None:
        self.claim = claim
        self.job_type = job_type
        self.options = job_type.options
        self.right: Right = (claim.id, claim.epoch)
        self.lease = lease or conf.lease
        self.started = time.monotonic()
        # When the claim was last known to stand.
        self._sure_at = self.started
        self._timeout = timeout
        self._record = record
        self._lend = lend
        self._is_guest = False
        self._pid = os.getpid()
        self._recorded = recorded
        self._tell = tell or _tell_here
        if self.options.takes_context:
            # Of transactions that the run did not open; async code meets them in another thread.
            self._atomic_depth = len(store.connection().atomic_blocks)

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

    @cached_property
    def job(self) -> Job:
        """Return the job as it was claimed."""
        return as_job(self.claim)

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

    def check_cancelled(self) -> None:
        """Raise `CancelRequested` if somebody asked to cancel this job.

        Ends the run, too, if its claim is lost or its timeout passed.
        """
        self.raise_if_stopped()
        standing = self.ask(lambda: store.standing(store.connection(), [self.claim.id]))
        now = standing.get(self.claim.id)
        if now is None or not now.holds(self.claim.epoch):
            self.stop(ClaimLost("another claim has taken the job"))
        elif now.cancel_requested:
            self.cancel_requested = True
            self.stop(CancelRequested())
        self.raise_if_stopped()

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
        answer = self.ask(lambda: store.show_progress(store.connection(), self.right, text))
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

    @cached_property
    def journal(self) -> Journal:
        """Return the memory of the run."""
        return Journal(self._read_checkpoints, self._recorded)

    def _read_checkpoints(self) -> list[tuple[Any, ...]]:
        # Over a connection of its own: it may be much.
        ids = [self.claim.id]
        return self.insist(
            lambda: store.read_checkpoints(store.connection(), ids)[ids[0]], self.wait_for_database
        )

    def guard(self) -> None:
        """Refuse a verb where it can't be durable, and end a run that is to end."""
        copies.leave_if_copy(self._pid)
        self.has_begun = True
        self.raise_if_stopped()
        refuse_in_step()
        db = store.connection()
        if len(db.atomic_blocks) > self._atomic_depth:
            raise DurableError(
                "a durable verb in an open atomic() would vanish with it: close it first,"
                " or use atomic_step"
            )

    def enter(self, kind: StepKind, name: str) -> Known | None:
        """Reach a checkpoint; return what is recorded of it."""
        self.guard()
        known = self.journal.enter(kind, name)
        if known is None or not known.is_final:
            self.make_sure()
        return known

    def make_sure(self) -> None:
        """End a run that is to end; ask the database if the claim may have been lost unnoticed.

        For if the process was frozen meanwhile, another may have taken the job and recorded what
        this run is about to do. Renewals leave a lease half its time, so that within this much of
        the last answer nobody can have.
        """
        self.raise_if_stopped()
        if (now := time.monotonic()) - self._sure_at > self.lease.total_seconds() / 2:
            self.check_cancelled()
            self._sure_at = now

    def reread(self, kind: StepKind, name: str) -> Known | None:
        """Return what the database has of a checkpoint; waits for it while it is away.

        And for a commit of this run that is under way, though its connection is lost: it holds the
        lock of the job. Ends a run that is to end.
        """

        def look() -> Known | None:
            self.lock()
            return self.journal.reread(kind, name)

        return self._asked(look)

    def insist(self, write: Callable[[], T], find: Callable[[], T | None]) -> T:
        """Return what a write comes to, though the connection is lost: it is repeated then.

        `find` waits until nobody can be writing it any more; what was stored, and only the answer
        lost, it returns, or None if the write is to be repeated. Raises what goes wrong in an open
        transaction, whose owner has to begin anew, or again and again.
        """
        for left in reversed(range(MOST_RERUNS)):
            try:
                return write()
            except store.OUTAGE:
                if store.connection().in_atomic_block:
                    raise
                found = find()
                if found is not None:
                    return found
                if not left:
                    raise
        raise AssertionError("unreachable")

    def ask(self, look: Callable[[], T], jobs: int = 1) -> T:
        """Return what a look at so many jobs says, though the connection is lost: as `insist`.

        Or what a write says that may as well be done twice. It waits for no lock but that of this
        job, so that it may go over the worker's connection.
        """
        return self.insist(lambda: self._briefly(look, jobs), self.wait_for_database)

    def _briefly(self, verb: Callable[[], T], jobs: int = 1) -> T:
        """Do a verb over the worker's connection, or over the run's own where that would take long.

        Somebody may have locked the job, and take his time. This run waits for him, and no other.
        """
        try:
            with self.connected_for(jobs):
                return verb()
        except store.RowLocked:
            if store.connection().in_atomic_block:
                raise
            return verb()

    def wait_for_database(self) -> None:
        """Wait until the database is back."""
        self._asked(lambda: None)

    def _asked(self, look: Callable[[], T]) -> T:
        """Return what a look in a transaction of its own says; waits for an absent database."""
        pause = 0.1
        while True:
            try:
                with store.transaction(self.lease):
                    return look()
            except store.OUTAGE:
                store.connection().close()
            self.pause(pause)
            pause = min(2 * pause, 2.0)

    @contextmanager
    def connected(self) -> Iterator[None]:
        """Let a few statements go over the worker's connection, if this thread has none yet.

        For what waits for no lock but that of this job: ends of others are written over it, too.
        """
        if self._lend is None or store.connection().connection is not None:
            yield
            return
        with self._lend() as self._is_guest:
            try:
                yield
            finally:
                self._is_guest = False

    def connected_for(self, jobs: int) -> AbstractContextManager[None]:
        """Do as `connected` to read so many jobs; those of many would keep others waiting."""
        return self.connected() if jobs <= FEW else nullcontext()

    def record(self, *checkpoints: Checkpoint) -> Written:
        """Record checkpoints; ends the run if its claim is lost."""
        now = time.monotonic()
        # A write that was stored is found by its repetition, which is new no more.
        written = self.insist(lambda: self._write(checkpoints), self._wait_for_own_writes)
        if not written.stands:
            self.stop(ClaimLost("another claim has taken the job"))
            self.raise_if_stopped()
        self._sure_at = now
        self._tell_recorded(checkpoints)
        if written.cancel_requested:
            # What was just earned is kept; the next verb learns of the cancel.
            self.cancel_requested = True
            self.stop(CancelRequested())
        return written

    def _write(self, checkpoints: Sequence[Checkpoint]) -> Written:
        if self._record is not None and not store.connection().in_atomic_block:
            # Somebody may have locked the job: this run waits for him, and no other.
            with suppress(store.RowLocked):
                return self._record(checkpoints)
        return store.record_checkpoints(store.connection(), checkpoints)

    def _wait_for_own_writes(self) -> None:
        """Wait until the database is back, and a commit of this run at its end."""
        self._asked(lambda: store.lock_run(store.connection(), self.right))

    def _tell_recorded(self, checkpoints: Sequence[Checkpoint]) -> None:
        """Send `step_recorded` for what has become final, once it is committed."""
        if not signals.is_heard(signals.step_recorded):
            return
        keys = [(c.kind.value, c.name) for c in checkpoints if c.status is not StepStatus.PENDING]
        if keys:
            notifications.call_after_commit(store.connection(), lambda: self._tell(self, keys))

    def lock(self) -> Written:
        """Lock the job in the transaction that is open; ends the run if it is to end.

        Over the worker's connection it waits for nobody, and raises `RowLocked`.
        """
        run = store.lock_run(store.connection(), self.right, waits=not self._is_guest)
        if not run.stands:
            self.stop(ClaimLost("another claim has taken the job"))
        elif run.cancel_requested:
            self.cancel_requested = True
            self.stop(CancelRequested())
        self.raise_if_stopped()
        return run

    def try_park(
        self,
        checkpoint: Checkpoint | None = None,
        *,
        awaited: Sequence[UUID] = (),
        signal: str | None = None,
    ) -> bool:
        """Park the run; False if what it would wait for has come. Ends one that is to end."""
        self.raise_if_stopped()
        faults.reach("before_park")
        # Said before it is true: from the commit on somebody else may run the job.
        self.is_parked = True

        def park() -> store.Parked:
            return store.park(
                store.connection(),
                self.right,
                awaited=awaited,
                wake_at=self._next_moment(),
                hold_key=self.options.hold_key_while_parked,
                signal=signal,
                checkpoint=checkpoint,
            )

        # The locks of the awaited may be held by others.
        verb = park if awaited else lambda: self._briefly(park)
        try:
            done = self.insist(verb, lambda: store.Parked.PARKED if self.has_let_go() else None)
        except BaseException:
            self.is_parked = False
            raise
        if done is store.Parked.PARKED:
            return True
        self.is_parked = False
        if done is store.Parked.REFUSED:
            self.check_cancelled()
            raise DurableError("the run can't be parked")
        return False

    def has_let_go(self) -> bool:
        """Tell whether a park is stored whose answer is lost; else the claim stands, or is lost.

        Others may have taken the job after either; but only a loss is recorded as one.
        """

        def look() -> bool:
            if store.lock_run(store.connection(), self.right).stands:
                return False
            return not self.job.attempts.filter(started_at=self.claim.claimed_at).exists()

        return self._asked(look)

    def _next_moment(self) -> datetime | None:
        """Return the first moment at which something that is under way wants to go on."""
        moments = [self.under_way.next_try()]
        for wait in self.under_way.waits():
            known = None if wait.key is None else self.journal.load().get(wait.key)
            if known is not None and not known.is_final:
                moments.append(known.wake_at)
        return min(filter(None, moments), default=None)

    def park(
        self,
        checkpoint: Checkpoint | None = None,
        *,
        awaited: Sequence[UUID] = (),
        signal: str | None = None,
    ) -> None:
        """Park and end the run, unless what it would wait for has come."""
        if self.try_park(checkpoint, awaited=awaited, signal=signal):
            self.end_parked()

    def end_parked(self) -> None:
        """End the run that has just parked, here and at whatever verb it may try yet."""
        self.stop(RunParked())
        self.raise_if_stopped()

    async def _in_thread(self, verb: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Do a plain verb from async code; a step's wait for its next try does not park beside it.

        For what follows such a verb is most often a wait.
        """
        with self.under_way.one():
            return await in_thread(verb)(*args, **kwargs)

    @cached_property
    def under_way(self) -> StepsUnderWay:
        """Return what counts the steps that an async run has under way."""
        return StepsUnderWay()

    def may_park(self, since: int | None, own: int = 0, *, rank: Rank = Rank.JOBS) -> bool:
        """Tell whether the run may park: no more than so many steps are under way.

        Whoever takes the job next would do them at the same time. And nothing has begun or ended
        `since`: the failure of another task, or the end of the function, would have to wait for
        what the run parks for. What waits leaves parking to waits of a higher rank.
        """
        under_way = self.under_way
        return not under_way.is_busy(rank, own) and under_way.is_still(since)

    def refusal(self) -> DurableError:
        """Return the error of a plain verb that would have to park beside async steps."""
        return DurableError(
            "a plain verb can't wait while async steps of the run are under way: use its async twin"
        )

    def clock(self) -> datetime:
        """Return about what the database's clock says, without asking it."""
        return self.claim.claimed_at + timedelta(seconds=time.monotonic() - self.started)

    def pause(self, seconds: float) -> None:
        """Wait in place; a stop ends it."""
        self.raise_if_stopped()
        if seconds > 0:
            self._stopped = self._stopped or threading.Event()
            self._stopped.wait(seconds)
            self.raise_if_stopped()

    async def apause(self, seconds: float) -> None:
        """Wait in place on the event loop, where a stop cancels the task."""
        self.raise_if_stopped()
        if seconds > 0:
            await asyncio.sleep(seconds)
            self.raise_if_stopped()

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

    def stop(self, why: StopRun) -> None:
        """End the run at its next durable verb, for the first reason that was given."""
        if self._stop is None:
            self._stop = why
            if self._stopped is not None:
                self._stopped.set()

    @property
    def is_abandoned(self) -> bool:
        """Tell whether the outcome of the run counts no more."""
        return self._stop is not None and isinstance(self._stop, ClaimLost | RunTimedOut)

    def raise_if_stopped(self) -> None:
        """Raise what `stop` said, if it did."""
        if self._stop is not None:
            raise self._stop


def _tell_here(context: JobContext, keys: Sequence[signals.CheckpointKey]) -> None:
    for step in signals.find_steps(context.job, keys):
        signals.send(signals.step_recorded, job=context.job, step=step)


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
        schedule_id=claim.schedule_id,
        scheduled_for=claim.scheduled_for,
        **changed,
    )
    job._state.adding = False
    job._state.db = store.connection().alias
    return job
