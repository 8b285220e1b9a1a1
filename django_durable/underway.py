"""What an async run does at the same time: the steps and the waits that a park has to mind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from enum import IntEnum

from asgiref.sync import sync_to_async

from django_durable.exceptions import StopRun

# How long nothing must have happened before a branch parks the run, and for how many turns of the
# loop: the failure of another branch has reached the function by then, or what it does next begun.
REST = 0.02
TURNS = 20
# In place of what has happened so far: the run may park without a rest.
AT_ONCE = -1
# One verb that is answered from what is recorded calls the thread of the run so often at most.
CALLS = 4
# So long, in seconds, the end of a run waits for tasks that stand between two verbs.
PATIENCE = 1.0


class Rank(IntEnum):
    """Say which of what waits at the same time parks the run: the highest, also for the others."""

    TRY = 0
    SLEEP = 1
    SIGNAL = 2
    JOBS = 3


@dataclass(frozen=True, eq=False)
class Wait:
    """Be a wait under way: its checkpoint, if it has one, and the signal that it is for."""

    rank: Rank
    key: tuple[str, str] | None = None
    signal: str | None = None


class StepsUnderWay:
    """Know the steps and waits that an async run has under way; for the thread of its event loop.

    A step that waits for its next try is not under way. Other threads may look at the attributes
    and ask for `next_try`.
    """

    def __init__(self) -> None:
        self.count = 0
        # For a moment, a signal or other jobs, from the first on: one parks the run.
        self._waits: list[Wait] = []
        self._next_tries: dict[object, datetime] = {}
        # Goes up with whatever begins or ends.
        self._events = 0
        # Whether a task other than that of the run has come to a verb.
        self.has_branched = False
        self._none = asyncio.Event()
        self._none.set()
        self._alone = asyncio.Event()
        self._alone.set()
        self._main: asyncio.Task[object] | None = None
        # Those that are in a verb, that have come to one, and whose verb has ended the run.
        self._tasks: set[asyncio.Task[object]] = set()
        self._known: set[asyncio.Task[object]] = set()
        self._stopped: set[asyncio.Task[object]] = set()

    def begin(self) -> None:
        """Know the current task as that of the run."""
        self._main = asyncio.current_task()

    @contextmanager
    def task(self) -> Iterator[None]:
        """Know the current task as one that is not to outlive the run.

        What ends the run in it, ends the run's own task, too: that may wait for something else.
        """
        task = asyncio.current_task()
        with self._meet(task):
            if task is None or task in self._tasks:
                yield
                return
            self._tasks.add(task)
            try:
                yield
            except StopRun:
                if self._main is not None and self._main is not task:
                    self._main.cancel()
                raise
            finally:
                self._tasks.discard(task)

    @contextmanager
    def _meet(self, task: asyncio.Task[object] | None) -> Iterator[None]:
        """Know a task that comes to a verb, until it ends."""
        self._look_at(task)
        if task is not None and task not in self._known:
            self._known.add(task)
            task.add_done_callback(self._leave)
        try:
            yield
        except StopRun:
            if task is not None:
                self._stopped.add(task)
            raise

    def _leave(self, task: asyncio.Task[object]) -> None:
        self._known.discard(task)
        if task in self._stopped and not task.cancelled():
            # Asked for here, so that asyncio does not tell of it as of an error that nobody saw.
            task.exception()
        self._stopped.discard(task)

    @asynccontextmanager
    async def wait(
        self, rank: Rank, key: tuple[str, str] | None = None, signal: str | None = None
    ) -> AsyncIterator[int | None]:
        """Do as `task`, once tasks made together with this one have begun their steps.

        Gives what `is_still` takes: the function itself may park the run at once if it is alone.
        """
        wait = Wait(rank, key, signal)
        with self.task():
            self._waits.append(wait)
            self._note()
            try:
                await asyncio.sleep(0)
                yield AT_ONCE if self.is_single else None
            finally:
                self._waits.remove(wait)
                self._note()

    @property
    def is_single(self) -> bool:
        """Tell whether the run has come to its verbs in one task only, this one."""
        self._look_at(asyncio.current_task())
        return not self.has_branched

    def _look_at(self, task: asyncio.Task[object] | None) -> None:
        if self._main is not None and task is not self._main:
            self.has_branched = True

    def is_still(self, since: int | None) -> bool:
        """Tell whether nothing has begun or ended since a rest, so that the run may park."""
        return since == AT_ONCE or since == self._events

    @contextmanager
    def one(self) -> Iterator[None]:
        """Count one more step."""
        with self._meet(asyncio.current_task()):
            self.count += 1
            self._note()
            try:
                yield
            finally:
                self.count -= 1
                self._note()

    def _note(self) -> None:
        """Know that something has begun or ended."""
        self._events += 1
        for event, busy in ((self._none, self.count), (self._alone, self.count or self._waits)):
            if busy:
                event.clear()
            else:
                event.set()

    def is_busy(self, rank: Rank, own: int = 0) -> bool:
        """Tell whether more than so many steps are under way, or a wait of a higher rank."""
        return self.count > own or any(wait.rank > rank for wait in self.waits())

    def waits(self) -> list[Wait]:
        """Return the waits that are under way, from the first on."""
        return list(self._waits)

    def signal(self) -> str | None:
        """Return the signal that the first of the waits for one is for."""
        return next((wait.signal for wait in self.waits() if wait.signal is not None), None)

    def plan(self, step: object, next_try: datetime | None) -> None:
        """Know when a step is tried next; None: it waits for no try any more."""
        if next_try is None:
            self._next_tries.pop(step, None)
        else:
            self._next_tries[step] = next_try

    def next_try(self) -> datetime | None:
        """Return when the first of the steps that wait for their next try is due."""
        return min(list(self._next_tries.values()), default=None)

    async def no_step(self, seconds: float) -> int | None:
        """Wait until no step is under way and all rests, for so long at most.

        Returns what `is_still` takes, None if that did not come.
        """
        return await self._rest(self._none, seconds)

    async def alone(self, seconds: float) -> int | None:
        """Do as `no_step`, until no other wait is under way either."""
        return await self._rest(self._alone, seconds)

    async def _rest(self, event: asyncio.Event, seconds: float) -> int | None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while True:
                    await event.wait()
                    if self.is_single:
                        return AT_ONCE
                    before = self._events
                    await asyncio.sleep(REST)
                    for _ in range(TURNS):
                        await asyncio.sleep(0)
                    if self._events == before:
                        return before
        return None

    async def rest(self) -> bool:
        """Give other tasks the time in which a park would come; return whether nothing happened.

        That they wait for the thread of the run, also if that is slow, is no rest.
        """
        before = self._events
        await asyncio.sleep(REST)
        for _ in range(CALLS):
            await sync_to_async(_do_nothing)()
            for _ in range(TURNS):
                await asyncio.sleep(0)
        return self._events == before

    async def end(self) -> None:
        """Cancel the tasks that the run leaves behind, and wait until they have ended.

        Whoever takes the job next would else do the same at the same time. A task that stands
        between two verbs is waited for during `PATIENCE` only, and then left. To be cancelled
        meanwhile changes nothing.
        """
        own = {asyncio.current_task(), self._main}
        between = self._known - self._tasks - own
        for task in between:
            task.cancel()
        while left := self._tasks - own:
            for task in left:
                task.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.wait(left)
        loop = asyncio.get_running_loop()
        until = loop.time() + PATIENCE
        while (left := between & self._known) and (seconds := until - loop.time()) > 0:
            with suppress(asyncio.CancelledError):
                await asyncio.wait(left, timeout=seconds)


def _do_nothing() -> None:
    """Be called in the thread of the run, behind whatever waits for it."""
