"""Where the functions run: plain ones in threads, async ones on one event loop."""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

from asgiref.sync import SyncToAsync, ThreadSensitiveContext

from django_durable import execution
from django_durable.outcomes import Outcome
from django_durable.worker import connections
from django_durable.worker.loops import logger
from django_durable.worker.runs import Run

Finished = Callable[[Run, Outcome], None]


class ThreadRunner:
    """Run plain functions, each in a thread of its own for as long as it runs.

    One idle thread at a time is woken; as it starts a run it wakes the next, if there is more.
    Short jobs are thus run by few threads, which costs few switches, and long ones all at once.
    """

    def __init__(self, finished: Finished, *, frugal: bool) -> None:
        """Keep no connection in idle threads, if `frugal`, however long it might be used.

        For a child that runs async functions, too, whose connections are others: together with one
        for each thread that was ever busy those would be more than there are slots.
        """
        self._finished = finished
        self._frugal = frugal
        self._waiting: deque[Run] = deque()
        self._lock = threading.Lock()
        self._idle: list[threading.Lock] = []
        self._waking = False
        self._count = 0
        self._pid = os.getpid()

    def submit(self, runs: Sequence[Run]) -> None:
        """Start runs; a new thread is made when none is idle.

        Raises `RuntimeError` when there is no thread and none can be had; nothing starts then.
        """
        self._waiting.extend(runs)
        self._wake_one()

    def _wake_one(self) -> None:
        with self._lock:
            if self._waking or not self._waiting:
                return
            self._waking = True
            if self._idle:
                self._idle.pop().release()
                return
            self._count += 1
        thread = threading.Thread(target=self._work, name=f"job-{self._count}", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            # The system gives no more threads; those that there are will come to it.
            self._waking = False
            self._count -= 1
            if not self._count:
                # Their claims are given back; a later thread must not run them all the same.
                self._waiting.clear()
                raise

    def _work(self) -> None:
        gate = threading.Lock()
        gate.acquire()
        awake = False
        while True:
            if not awake:
                awake = True
                self._waking = False
            try:
                run = self._waiting.popleft()
            except IndexError:
                with self._lock:
                    if self._waiting:
                        continue
                    self._idle.append(gate)
                gate.acquire()
                awake = False
                # Idle for a while, perhaps: what the last run left may have grown old.
                connections.clean()
                continue
            if self._waiting:
                self._wake_one()
            # In a context of its own: a language or a time zone that it sets ends with it.
            own = contextvars.copy_context()
            execute = _isolated if run.is_isolated else _execute
            outcome = own.run(execute, run)
            self._leave_if_copy()
            if self._frugal and not self._waiting:
                # Before its slot, and with it its connection, is another run's.
                connections.drop()
            else:
                connections.clean()
            self._finished(run, outcome)

    def _leave_if_copy(self) -> None:
        """End the process if it is a copy that a job made by `fork` and let come back from it.

        The original records the end of the job; the copy must not touch what the two share.
        """
        if os.getpid() != self._pid:
            os._exit(0)


def _execute(run: Run) -> Outcome:
    return execution.execute(run.context)


def _isolated(run: Run) -> Outcome:
    # Imported late: few projects need it, and it brings a server process along.
    from django_durable.worker import isolation

    try:
        return isolation.execute(run)
    except BaseException as error:  # noqa: BLE001 - without an outcome the job would never end
        return execution.judge(run.context, error)


class LoopRunner:
    """Run async functions on one event loop, in a thread of its own."""

    def __init__(self, finished: Finished) -> None:
        self._finished = finished
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: deque[Run] = deque()

    def submit(self, runs: Sequence[Run]) -> None:
        """Start runs on the loop, which is made for the first one; raises as a thread does."""
        if not runs:
            return
        if self._loop is None:
            loop = asyncio.new_event_loop()
            try:
                threading.Thread(
                    target=self._run_loop, args=(loop,), name="loop", daemon=True
                ).start()
            except RuntimeError:
                # Nobody would run what is put on it.
                loop.close()
                raise
            self._loop = loop
        self._waiting.extend(runs)
        self._loop.call_soon_threadsafe(self._start_all)

    def _run_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        while True:
            try:
                loop.run_forever()
            except BaseException:  # noqa: BLE001 - users' code
                # A task that some job started raised SystemExit, say; the loop serves all jobs.
                logger.exception("What a job started on the loop has failed; the loop goes on")

    def _start_all(self) -> None:
        while self._waiting:
            run = self._waiting[0]
            assert self._loop is not None  # noqa: S101 - the loop is what calls this
            task = self._loop.create_task(self._work(run))
            run.runs_as(task, self._loop)
            self._waiting.popleft()

    async def _work(self, run: Run) -> None:
        # As each request has under ASGI: what one run does in its thread keeps no other waiting.
        own = ThreadSensitiveContext()
        SyncToAsync.thread_sensitive_context.set(own)
        try:
            # The loop may have been busy for long: a cancel or a timeout may have come meanwhile.
            run.context.raise_if_stopped()
            outcome = await execution.aexecute(run.context)
        except BaseException as error:  # noqa: BLE001 - without an outcome it would never end
            outcome = execution.judge(run.context, error)
        try:
            await self._leave_thread(own)
        finally:
            # Whatever becomes of the thread, and of this task, the end is recorded.
            self._finished(run, outcome)

    async def _leave_thread(self, own: ThreadSensitiveContext) -> None:
        """Wait until nothing runs any more in the thread of a run, if it has one, and end it.

        That holds its slot, also when the task is cancelled meanwhile: what is called there can't
        be. Coroutines that the run has left behind share a thread, with one connection, that is
        cleaned whenever a run ends.
        """
        threads, shared = SyncToAsync.context_to_thread_executor, SyncToAsync.single_thread_executor
        thread = threads.get(own)
        threads[own] = shared
        if thread is None:
            return
        cleaned = asyncio.get_running_loop().run_in_executor(thread, connections.drop)
        while not cleaned.done():
            with suppress(asyncio.CancelledError):
                await asyncio.shield(cleaned)
        thread.shutdown(wait=False)
        shared.submit(connections.drop)
