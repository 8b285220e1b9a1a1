"""What an async run does at the same time: its steps under way, which no park may leave behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress

from django_durable.exceptions import StopRun


class StepsUnderWay:
    """Count the steps that an async run has under way; for the thread of its event loop.

    A step that waits for its next try is not under way. Other threads may look at `count`.
    """

    def __init__(self) -> None:
        self.count = 0
        self._none = asyncio.Event()
        self._none.set()
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
    async def wait(self) -> AsyncIterator[None]:
        """Do as `task`, once tasks made together with this one have begun their steps."""
        with self.task():
            await asyncio.sleep(0)
            yield

    @contextmanager
    def one(self) -> Iterator[None]:
        """Count one more step."""
        self.count += 1
        self._none.clear()
        try:
            yield
        finally:
            self.count -= 1
            if not self.count:
                self._none.set()

    async def none(self, seconds: float) -> None:
        """Wait until no step is under way, for at most so long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._none.wait()

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
