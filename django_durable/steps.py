"""Steps: functions whose result is recorded, and which are then never called again."""

from __future__ import annotations

import asyncio
import inspect
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from asgiref.sync import async_to_sync, sync_to_async
from django.db import OperationalError

from django_durable import faults, payloads, store
from django_durable.choices import StepKind, StepStatus
from django_durable.conf import conf
from django_durable.copies import leave_if_copy
from django_durable.errorlog import get_logger
from django_durable.errortext import ErrorText
from django_durable.exceptions import (
    CancelJob,
    JobTimeout,
    RejectJob,
    RetryJob,
)
from django_durable.excursions import Uncancelled
from django_durable.groups import decisive
from django_durable.journal import Known
from django_durable.revival import revive
from django_durable.step_policy import inside_step, policy_of
from django_durable.store import Checkpoint
from django_durable.underway import AT_ONCE, Rank

if TYPE_CHECKING:
    from django_durable.context import JobContext

logger = get_logger("django_durable.worker")

DEADLOCKS = ("40001", "40P01")
MOST_RERUNS = 5
T = TypeVar("T")


class StepRun:
    """Be one `context.step`: what is recorded, then the tries, then the record."""

    kind = StepKind.STEP

    def __init__(
        self,
        context: JobContext,
        name: str,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        self.context = context
        # The policy is the function's, and the arguments are what its compensation is called with.
        while isinstance(func, partial):
            args, kwargs, func = func.args + args, {**func.keywords, **kwargs}, func.func
        self.name = name
        self.func = func
        self.args = args
        self.kwargs = kwargs
        self.policy = policy_of(func)
        self.known: Known | None = None
        # How long the function took when it was last called, in seconds.
        self.took = 0.0
        self.undo: dict[str, Any] = {}
        # Whether the database was given what the last call came to, and may have kept it.
        self.is_given = False
        # How many steps under way are this one, and whether it may park as soon as it fails.
        self.own = 0
        self.since: int | None = AT_ONCE

    def enter(self) -> bool:
        """Reach the checkpoint; return whether it is recorded."""
        self.known = self.context.enter(self.kind, self.name)
        return self.is_over

    @property
    def is_over(self) -> bool:
        """Tell whether an end of the step is recorded."""
        return self.known is not None and self.known.is_final

    def recorded(self) -> Any:
        """Return or raise what is recorded."""
        assert self.known is not None  # noqa: S101 - `enter` said so
        if self.known.status is StepStatus.FAILED:
            raise revive(self.known.error_class, self.known.message)
        # A copy of its own for each caller, as if it had just been made.
        return payloads.decode(payloads.encode(self.known.value, where="", limit=None))

    def pending_wait(self) -> float:
        """Return how many seconds are left to wait before the next try."""
        if self.known is None or self.known.wake_at is None:
            return 0.0
        return (self.known.wake_at - self.context.clock()).total_seconds()

    def call(self) -> Any:
        """Call the function once."""
        self._note_call()
        func = self.func
        if self.is_async:
            func = async_to_sync(self._in_time)
        with self._calling():
            return func(*self.args, **self.kwargs)

    @property
    def is_async(self) -> bool:
        """Tell whether the function is async."""
        return inspect.iscoroutinefunction(self.func)

    def succeed(self, value: Any) -> Any:
        """Record the value; return it as a replay would."""
        limit = self.policy.timeout
        if limit is not None and self.took > limit.total_seconds():
            raise _overrun(limit)
        text = payloads.encode(
            value, where=f"the value of step {self.name!r}", limit=conf.max_payload
        )
        faults.reach("before_step_record")
        self.is_given = True
        self._write(StepStatus.SUCCEEDED, value=text, **self.undo)
        return payloads.decode(text)

    def _note_call(self) -> None:
        """Note what would take the step back, before it is done: not all can be stored."""
        self.is_given = False
        if self.policy.compensate is not None and not self.undo:
            call = payloads.encode(
                (list(self.args), self.kwargs), where=f"the call of step {self.name!r}", limit=None
            )
            self.undo = {"undo_name": self.policy.name, "undo_call": call}

    @contextmanager
    def _calling(self) -> Iterator[None]:
        """Be around the function alone: what waits for the thread, before and after, takes none."""
        original, started = os.getpid(), time.monotonic()
        try:
            with inside_step():
                yield
        finally:
            leave_if_copy(original)
            self.took = time.monotonic() - started

    def is_kept(self, error: Exception) -> bool:
        """Tell whether an end is recorded all the same; what was raised after that is logged.

        The answer of the commit may be lost, or a hook of it have failed. A replay would go by the
        record, and so must this run: that is read once nobody can be writing it any more.
        """
        if not self.is_given:
            return False
        known = self.context.reread(self.kind, self.name)
        if known is None or not known.is_final:
            return False
        self.known = known
        if not isinstance(error, store.AlreadyRecorded):
            logger.error(
                "The step %r of %s is recorded; what was raised after that changes nothing of it",
                self.name,
                self.context.right[0],
                exc_info=error,
            )
        return True

    def fail(self, error: Exception) -> None:
        """Record what the error means, and raise it if that is the end.

        Return if the step is to be tried again, or another end of it is recorded.
        """
        if isinstance(decisive(error, self.context.options), RetryJob | RejectJob | CancelJob):
            raise error
        text = ErrorText.from_exception(error)
        tries = (self.known.tries if self.known else 0) + 1
        most = self.policy.max_attempts
        if not self.context.is_retryable(error) or (most is not None and tries >= most):
            with self._or_kept():
                self._write(
                    StepStatus.FAILED,
                    error_class=text.error_class,
                    message=text.message,
                    tries=tries,
                )
            if self.known is not None and self.known.status is StepStatus.FAILED:
                raise revive(self.known.error_class, self.known.message) from error
            return
        if most is None:
            raise error
        delay = self.policy.backoff.delay(tries).total_seconds()
        self._wait_for_next(text, tries, delay)

    def give_up(self, error: BaseException) -> bool:
        """Record an error that another try might have mended, since there is none left.

        Return whether it has succeeded all the same.
        """
        text = ErrorText.from_exception(error)
        with self._or_kept():
            self._write(StepStatus.FAILED, error_class=text.error_class, message=text.message)
        return self.known is not None and self.known.status is StepStatus.SUCCEEDED

    @contextmanager
    def _or_kept(self) -> Iterator[None]:
        """Be around a write of how it has failed; another end that is recorded goes before it."""
        self.is_given = True
        try:
            yield
        except Exception as error:
            if not self.is_kept(error):
                raise

    def _wait_for_next(self, text: ErrorText, tries: int, delay: float) -> None:
        checkpoint = self._checkpoint(
            StepStatus.PENDING,
            error_class=text.error_class,
            message=text.message,
            tries=tries,
            delay=delay,
        )
        with self._or_kept():
            if delay > self.context.MOMENT and self._may_park(self.since, self.own):
                self.context.park(checkpoint)
            self._keep(checkpoint, self.context.record(checkpoint))

    def _may_park(self, since: int | None, own: int = 0) -> bool:
        return self.context.may_park(since, own, rank=Rank.TRY)

    def _go_on_waiting(self, since: int | None) -> None:
        """Park until the next try, unless others are under way or it is due."""
        known = self.known
        assert known is not None  # noqa: S101 - it waits
        if self.pending_wait() > self.context.MOMENT and self._may_park(since):
            self.context.park(
                self._checkpoint(
                    StepStatus.PENDING,
                    error_class=known.error_class,
                    message=known.message,
                    wake_at=known.wake_at,
                )
            )

    def _checkpoint(self, status: StepStatus, **values: Any) -> Checkpoint:
        ordinal = self.known.ordinal if self.known else self.context.journal.next_ordinal()
        values.setdefault("tries", self.known.tries if self.known else 0)
        return Checkpoint(
            self.context.right, self.kind, self.name, ordinal, status, took=self.took, **values
        )

    def _write(self, status: StepStatus, **values: Any) -> None:
        checkpoint = self._checkpoint(status, **values)
        self._keep(checkpoint, self.context.record(checkpoint))

    def _keep(self, checkpoint: Checkpoint, written: store.Written) -> None:
        if not written.is_new:
            raise store.AlreadyRecorded
        self.known = Known(
            checkpoint.ordinal,
            checkpoint.status,
            # Nobody asks for it: a run comes to a name once, and reads anew what it is unsure of.
            None,
            checkpoint.error_class,
            checkpoint.message,
            written.wake_at,
            checkpoint.child,
            checkpoint.tries,
        )
        self.context.journal.keep(self.kind, self.name, self.known)

    def once(self) -> Any:
        """Call the function and record its value."""
        return self.succeed(self.call())

    async def aonce(self, block: Uncancelled) -> Any:
        """Do what `once` does, from async code; what a function has returned is recorded."""
        if not self.is_async:
            return await block.call(self.once)
        self._note_call()
        with self._calling():
            value = await self._in_time(*self.args, **self.kwargs)
        return await block.finish(self.succeed, value)

    def run(self) -> Any:
        """Do the step in this thread."""
        if self.enter():
            return self.recorded()
        while True:
            self.context.pause(self.pending_wait())
            self.context.make_sure()
            try:
                value = self.once()
            except Exception as error:  # noqa: BLE001 - judged by `fail`
                if not self.is_kept(error):
                    self.fail(error)
                if self.is_over:
                    return self.recorded()
            else:
                faults.reach("after_step_record")
                return value

    async def arun(self) -> Any:
        """Do the step on the event loop; a plain function runs in a thread."""
        under_way = self.context.under_way
        self.own = 1
        with under_way.task():
            with under_way.one():
                if await sync_to_async(self.enter)():
                    return self.recorded()
                found = None if self.pending_wait() > 0 else await self._atry()
                self._plan_next_try()
            try:
                while found is None:
                    await self._await_next_try()
                    with under_way.one():
                        under_way.plan(self, None)
                        # What was parking the run at this moment has done so, or it waits for this.
                        await sync_to_async(self.context.make_sure)()
                        found = await self._atry()
                        self._plan_next_try()
            finally:
                under_way.plan(self, None)
            return found[0]

    async def _atry(self) -> tuple[Any] | None:
        """Try the step; return its value, in a tuple, or None if it is to be tried again.

        What the function has come to is recorded also if the task is cancelled meanwhile.
        """
        with Uncancelled() as block:
            try:
                value = await self.aonce(block)
            except Exception as error:  # noqa: BLE001 - judged by `fail`
                if self.is_given and await block.finish(self.is_kept, error):
                    return (self.recorded(),)
                # A park would keep the cancellation from whoever waits for it.
                at_once = self.context.under_way.is_single and block.cancellation is None
                self.since = AT_ONCE if at_once else None
                await block.finish(self.fail, error)
                return (self.recorded(),) if self.is_over else None
        faults.reach("after_step_record")
        return (value,)

    def _plan_next_try(self) -> None:
        """Let whoever parks the run know when to wake it for this step."""
        self.context.under_way.plan(self, self.known.wake_at if self.known else None)

    async def _await_next_try(self) -> None:
        while (left := self.pending_wait()) > self.context.MOMENT:
            since = await self.context.under_way.alone(left)
            await sync_to_async(self._go_on_waiting)(since)
        await self.context.apause(left)

    async def _in_time(self, *args: Any, **kwargs: Any) -> Any:
        """Call the async function, and cancel it when its time is over."""
        limit = self.policy.timeout
        try:
            async with asyncio.timeout(None if limit is None else limit.total_seconds()) as timer:
                return await self.func(*args, **kwargs)
        except TimeoutError as error:
            if limit is not None and timer.expired():
                raise _overrun(limit) from error
            raise


def _overrun(limit: timedelta) -> JobTimeout:
    error = JobTimeout(f"the step overran its timeout of {limit.total_seconds():g} s")
    # Whatever `retry_on` says.
    error.retryable = True  # type: ignore[attr-defined]
    return error


class AtomicStepRun(StepRun):
    """Be one `context.atomic_step`: the function's writes and the record are one transaction."""

    def once(self) -> Any:
        """Call the function and record its value in one transaction, anew after a deadlock."""
        known = self.known
        try:
            return in_transaction(self.context, super().once, self.context.lease)
        except Exception:
            # What was noted as recorded has been rolled back.
            self.known = known
            raise

    async def aonce(self, block: Uncancelled) -> Any:
        """Do what `once` does, from async code."""
        return await block.call(self.once)


def in_transaction(context: JobContext, body: Callable[[], T], idle: timedelta | None = None) -> T:
    """Return what the body does in a transaction, which is begun anew after a deadlock.

    A deadlock of what its own hooks do, once it is committed, is none of these.
    """
    for rerun in range(MOST_RERUNS):
        committed: list[bool] = []
        try:
            with store.transaction(idle):
                store.connection().on_commit(partial(committed.append, True))
                return body()
        except OperationalError as error:
            code = getattr(error.__cause__, "sqlstate", None)
            if committed or code not in DEADLOCKS or rerun == MOST_RERUNS - 1:
                raise
            context.pause(0.01 * 2**rerun)
    raise AssertionError("unreachable")
