"""Where the functions run: plain ones in threads, async ones on one event loop."""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from asgiref.sync import SyncToAsync, ThreadSensitiveContext

from django_durable import copies, execution
from django_durable.excursions import until_done
from django_durable.outcomes import Outcome
from django_durable.worker import connections
from django_durable.worker.loops import logger
from django_durable.worker.runs import Run

Finished = Callable[[Run, Outcome], None]
Note = Callable[[Run, int, int], None]
# So often in a row, without a run between them, a job thread goes on after an exception.
MOST_FAILURES = 10
# How long a thread takes at most to wake, or to start: one into which something is thrown before it
# has begun never does.
WAKES_WITHIN = 5.0


class ThreadRunner:
    """Run plain functions, each in a thread of its own for as long as it runs.

    One idle thread at a time is woken; as it starts a run it wakes the next, if there is more.
    Short jobs are thus run by few threads, which costs few switches, and long ones all at once.
    """

    def __init__(self, finished: Finished, note: Note, *, frugal: bool) -> None:
        """Keep no connection in idle threads, if `frugal`, however long it might be used.

        For a child that runs async functions, too, whose connections are others: together with one
        for each thread that was ever busy those would be more than there are slots.
        """
        self._finished = finished
        self._note = note
        self._frugal = frugal
        self._waiting: deque[Run] = deque()
        self._lock = threading.Lock()
        self._idle: list[threading.Lock] = []
        self._waking = False
        self._count = 0
        self._threads: list[threading.Thread] = []
        # What was thrown into threads between two runs, for another thread to tell of.
        self.thrown: deque[str] = deque(maxlen=100)
        # The run that waits in front while a thread is being woken, and since when.
        self._first: tuple[Run | None, float] = (None, 0.0)
        self._pid = os.getpid()

    def has_failed(self) -> bool:
        """Tell whether one of the threads has ended, which none is told to, or never began."""
        return self._is_wedged() or not all(thread.is_alive() for thread in self._threads)

    def _is_wedged(self) -> bool:
        first = next(iter(self._waiting.copy()), None) if self._waking else None
        now = time.monotonic()
        if first is None or first is not self._first[0]:
            self._first = (first, now)
        return first is not None and now - self._first[1] > WAKES_WITHIN

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
                gate = self._idle[-1]
                del self._idle[-1]
                gate.release()
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
        else:
            self._threads.append(thread)

    def _work(self) -> None:
        hand = Hand(self._waiting)
        # A thread that nothing helps ends, and with it the child.
        while hand.failures < MOST_FAILURES:
            try:
                self._go_on(hand)
            except BaseException as error:  # noqa: BLE001 - as there
                # It came as the loop there went on, outside of its own guard.
                hand.thrown = error
                hand.failures += 1

    def _go_on(self, hand: Hand) -> None:
        while hand.failures < MOST_FAILURES:
            try:
                self._serve(hand)
            except BaseException as error:  # noqa: BLE001 - told of as soon as all is in order
                hand.thrown = error
                hand.failures += 1

    def _serve(self, hand: Hand) -> None:
        """Run what waits, for ever; whatever ends it, wherever, it can be called again.

        What ends it is thrown by timers of jobs that have ended (`PyThreadState_SetAsyncExc`), or
        is for want of memory or of recursion.
        """
        if hand.thrown is not None:
            self._tidy(hand)
        # Whoever was to be woken is awake. If it is another one, two are awake for a moment.
        self._waking = False
        while True:
            if not hand.runs:
                try:
                    next(hand.take)
                except IndexError:
                    self._rest(hand)
                    continue
            if self._waiting:
                self._wake_one()
            run = hand.runs[0]
            if run.outcome is None:
                # In a context of its own: a language or a time zone that it sets ends with it.
                contextvars.copy_context().run(self._call, run)
            self._end(run)
            hand.runs.clear()
            hand.failures = 0

    def _rest(self, hand: Hand) -> None:
        """Be idle until woken, if nothing waits."""
        with self._lock:
            if self._waiting:
                return
            self._idle.append(hand.gate)
        hand.gate.acquire()
        self._waking = False
        # Idle for a while, perhaps: what the last run left may have grown old.
        connections.clean()

    def _call(self, run: Run) -> None:
        """Call the function, and keep what it came to."""
        run.is_called = True
        run.outcome = self._isolated(run) if run.is_isolated else execution.execute(run.context)

    def _isolated(self, run: Run) -> Outcome:
        try:
            # Imported late: few projects need it, and it brings a server process along.
            from django_durable.worker import isolation

            return isolation.execute(run, self._note)
        except BaseException as error:  # noqa: BLE001 - without an outcome the job would never end
            return execution.judge(run.context, error)

    def _end(self, run: Run) -> None:
        """Hand over the outcome of a run, and leave the thread clean; once more does no harm."""
        copies.leave_if_copy(self._pid)
        if self._frugal and not self._waiting:
            # Before its slot, and with it its connection, is another run's.
            connections.drop()
        else:
            connections.clean()
        assert run.outcome is not None  # noqa: S101 - the function has been called
        self._finished(run, run.outcome)

    def _tidy(self, hand: Hand) -> None:
        """Bring a thread in order into which something was thrown, wherever that was."""
        error = hand.thrown
        with self._lock:
            if hand.gate in self._idle:
                self._idle.remove(hand.gate)
        # Closed, also if somebody has opened it and this thread has not come through.
        hand.gate.acquire(blocking=False)
        if hand.runs and hand.runs[0].is_called and hand.runs[0].outcome is None:
            run = hand.runs[0]
            run.outcome = execution.judge(run.context, error or RuntimeError())
        # Not logged here: what is thrown into that may leave a handler locked for ever.
        self.thrown.append(type(error).__name__)
        hand.thrown = None


class Hand:
    """Be what a job thread has in its hands, so that it is not lost with the thread's frames."""

    thrown: BaseException | None = None
    failures = 0

    def __init__(self, waiting: deque[Run]) -> None:
        self.gate = threading.Lock()
        self.gate.acquire()
        # One at most.
        self.runs: list[Run] = []
        # Its `next` moves a run from the one to the other in one step, during which nothing can be
        # thrown: that happens between the steps of Python's own code.
        self.take = map(self.runs.append, iter(waiting.popleft, None))


class LoopRunner:
    """Run async functions on one event loop, in a thread of its own."""

    def __init__(self, finished: Finished) -> None:
        self._finished = finished
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._waiting: deque[Run] = deque()
        self._pid = os.getpid()

    def has_failed(self) -> bool:
        """Tell whether the thread has ended, which it is never told to."""
        return self._thread is not None and not self._thread.is_alive()

    def submit(self, runs: Sequence[Run]) -> None:
        """Start runs on the loop, which is made for the first one; raises as a thread does."""
        if not runs:
            return
        if self._loop is None:
            loop = asyncio.new_event_loop()
            thread = threading.Thread(target=self._run_loop, args=(loop,), name="loop", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                # Nobody would run what is put on it.
                loop.close()
                raise
            self._loop, self._thread = loop, thread
        self._waiting.extend(runs)
        self._loop.call_soon_threadsafe(self._start_all)

    def _run_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        copies.end_copies_of_loop(loop)
        while not loop.is_closed():
            try:
                loop.run_forever()
            except BaseException:  # noqa: BLE001 - users' code
                copies.leave_if_copy(self._pid)
                # A task that some job started raised SystemExit, say; the loop serves all jobs.
                logger.exception("What a job started on the loop has failed; the loop goes on")

    def _start_all(self) -> None:
        assert self._loop is not None  # noqa: S101 - the loop is what calls this
        try:
            while self._waiting:
                run = self._waiting[0]
                task = self._loop.create_task(self._work(run))
                run.runs_as(task, self._loop)
                self._waiting.popleft()
        finally:
            # Whatever has come between, the others are started.
            if self._waiting:
                self._loop.call_soon(self._start_all)

    async def _work(self, run: Run) -> None:
        if run.is_called:
            # Its start was interrupted, and made once more.
            return
        run.is_called = True
        # As each request has under ASGI: what one run does in its thread keeps no other waiting.
        own = ThreadSensitiveContext()
        SyncToAsync.thread_sensitive_context.set(own)
        try:
            # The loop may have been busy for long: a cancel or a timeout may have come meanwhile.
            run.context.raise_if_stopped()
            outcome = await execution.aexecute(run.context)
        except BaseException as error:  # noqa: BLE001 - without an outcome it would never end
            outcome = execution.judge(run.context, error)
        copies.leave_if_copy(self._pid)
        try:
            await self._leave_thread(own)
        finally:
            # Whatever becomes of the thread, and of this task, the end is recorded.
            self._hand_over(run, outcome)

    def _hand_over(self, run: Run, outcome: Outcome) -> None:
        try:
            self._finished(run, outcome)
        except BaseException:
            # Thrown by a timer, say, into the middle; once more does no harm.
            self._finished(run, outcome)
            raise

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
        await until_done(asyncio.get_running_loop().run_in_executor(thread, connections.drop))
        thread.shutdown(wait=False)
        shared.submit(connections.drop)
