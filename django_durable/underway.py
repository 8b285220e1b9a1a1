"""What an async run does at the same time: the steps and the waits that a park has to mind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import datetime

from django_durable.exceptions import StopRun

# How long nothing must have happened before a branch parks the run, and for how many turns of the
# loop: the failure of another branch has reached the function by then, or what it does next begun.
REST = 0.02
TURNS = 20


class StepsUnderWay:
    """Know the steps and waits that an async run has under way; for the thread of its event loop.

    A step that waits for its next try is not under way. Other threads may look at the attributes
    and ask for `next_try`.
    """

    def __init__(self) -> None:
        self.count = 0
        # For a moment, a signal or other jobs: when one can't go on, it parks the run.
        self.waits = 0
        self._next_tries: dict[object, datetime] = {}
        # Goes up with whatever begins or ends.
        self._events = 0
        self._none = asyncio.Event()
        self._none.set()
        self._alone = asyncio.Event()
        self._alone.set()
        self._main: asyncio.Task[object] | None = None
        self._tasks: set[asyncio.Task[object]] = set()

    def begin(self) -> None:
        """Know the current task as that of the run."""
        self._main = asyncio.current_task()

    @contextmanager
    def task(self) -> Iterator[None]:
        """Know the current task as one that is not to outlive the run.

        What ends the run in it, ends the run's own task, too: that may wait for something else.
        """
        task = asyncio.current_task()
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

    @asynccontextmanager
    async def wait(self) -> AsyncIterator[bool]:
        """Do as `task`, once tasks made together with this one have begun their steps.

        Tells whether it is the function itself that waits, which may park the run at once. A branch
        may do so when nothing has happened for a moment.
        """
        with self.task():
            self._count(0, 1)
            try:
                await asyncio.sleep(0)
                yield self.is_main
            finally:
                self._count(0, -1)

    @property
    def is_main(self) -> bool:
        """Tell whether the current task is that of the run, and no branch."""
        return self._main is None or asyncio.current_task() is self._main

    @contextmanager
    def one(self) -> Iterator[None]:
        """Count one more step."""
        self._count(1, 0)
        try:
            yield
        finally:
            self._count(-1, 0)

    def _count(self, steps: int, waits: int) -> None:
        self._events += 1
        self.count += steps
        self.waits += waits
        for event, busy in ((self._none, self.count), (self._alone, self.count + self.waits)):
            if busy:
                event.clear()
            else:
                event.set()

    def plan(self, step: object, next_try: datetime | None) -> None:
        """Know when a step is tried next; None: it waits for no try any more."""
        if next_try is None:
            self._next_tries.pop(step, None)
        else:
            self._next_tries[step] = next_try

    def next_try(self) -> datetime | None:
        """Return when the first of the steps that wait for their next try is due."""
        return min(list(self._next_tries.values()), default=None)

    async def no_step(self, seconds: float) -> None:
        """Wait until no step is under way and the run may park, for about so long at most."""
        await self._quiet(self._none, seconds)

    async def alone(self, seconds: float) -> None:
        """Wait until neither a step nor a wait is under way, for about so long at most."""
        await self._quiet(self._alone, seconds)

    async def _quiet(self, event: asyncio.Event, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await event.wait()
        while event.is_set() and not self.is_main:
            before = self._events
            await asyncio.sleep(REST)
            for _ in range(TURNS):
                await asyncio.sleep(0)
            if self._events == before:
                return

    async def end(self) -> None:
        """Cancel the steps that the run leaves behind, and wait until they have ended.

        Whoever takes the job next would else do them at the same time. To be cancelled meanwhile
        changes nothing.
        """
        while left := self._tasks - {asyncio.current_task()}:
            for task in left:
                task.cancel()
            try:
                await asyncio.wait(left)
            except asyncio.CancelledError:
                continue
