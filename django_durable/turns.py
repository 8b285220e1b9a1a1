"""Turns: the verbs of an async rehearsal are answered one by one, in the order of their history.

A replay has all answers at once, and comes to what ran at the same time in the order of the code.
What the code came to after an answer is seen only where the answers come as they came then.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

from asgiref.sync import sync_to_async

Key = tuple[str, str]

# Within so many rounds of the loop tasks that wait for nothing else come to their next verbs.
ROUNDS = 20
# So long, in seconds, what is next may take that waits for something else than a verb.
PATIENCE = 0.1
# So many times as long, if it may wait for a thread.
MOST_WAITS = 50
# Then the loop's clock is put forward by more and more seconds: by a day, in all.
JUMPS = tuple(2**power for power in range(17))


@dataclass(eq=False)
class Ticket:
    """Be a verb that waits for its turn; `text` says which to people."""

    text: str
    keys: Sequence[Key]
    # From the first place in the history to the last; what is not recorded has none.
    places: tuple[int, int] | None
    turn: asyncio.Event = field(default_factory=asyncio.Event)
    over: asyncio.Event = field(default_factory=asyncio.Event)


class Turns:
    """Give the verbs of one run their turns; for the thread of its event loop, if nothing else."""

    def __init__(self, history: Iterable[Key]) -> None:
        self._places = {key: place for place, key in enumerate(history)}
        self._next = 0
        self.tickets: list[Ticket] = []
        self._tasks: set[asyncio.Task[Any]] = set()
        self._news = asyncio.Event()
        self._skipped = 0.0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0
        # What waits for the thread behind all that did before.
        self._behind: asyncio.Future[None] | None = None
        self._is_over = False
        self._are_at_work: Callable[[], bool] = lambda: False

    @property
    def is_beside(self) -> bool:
        """Tell whether the caller is a thread beside that of the event loop; for all threads."""
        return self._loop is not None and threading.get_ident() != self._thread

    @property
    def has_loop(self) -> bool:
        """Tell whether there is an event loop on which turns are given."""
        return self._loop is not None

    @contextmanager
    def take_beside(
        self, aside: Callable[[], AbstractContextManager[None]], text: str, keys: Sequence[Key] = ()
    ) -> Iterator[bool]:
        """Do as `take` in a thread beside that of the loop, which stands `aside` as it waits.

        Gives False, and waits no more, when the run is over.
        """
        given, over = threading.Event(), asyncio.Event()

        async def hold() -> None:
            if not self._is_over:
                async with self.take(text, keys):
                    given.set()
                    await over.wait()

        assert self._loop is not None  # noqa: S101 - `is_beside` said so
        held = asyncio.run_coroutine_threadsafe(hold(), self._loop)
        held.add_done_callback(lambda _: given.set())
        with aside():
            given.wait()
        try:
            yield not held.done()
        finally:
            if not held.done():
                self._loop.call_soon_threadsafe(over.set)

    @asynccontextmanager
    async def take(self, text: str, keys: Sequence[Key] = ()) -> AsyncIterator[None]:
        """Wait for the turn of a verb, which lasts as long as the block."""
        ticket = Ticket(text, keys, self._places_of(keys))
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - it runs on a loop
        self._tasks.add(task)
        self.tickets.append(ticket)
        self._news.set()
        try:
            await ticket.turn.wait()
            yield
        finally:
            if ticket in self.tickets:
                self.tickets.remove(ticket)
            ticket.over.set()

    def _places_of(self, keys: Sequence[Key]) -> tuple[int, int] | None:
        places = [self._places[key] for key in keys if key in self._places]
        is_recorded = places and len(places) == len(keys)
        return (min(places), max(places)) if is_recorded else None

    def pass_by(self, key: Key) -> None:
        """Know that a verb was answered without a turn, or comes to its answer now."""
        self._next = max(self._next, self._places.get(key, -1) + 1)

    async def run(
        self, function: Coroutine[Any, Any, Any], are_at_work: Callable[[], bool]
    ) -> bool:
        """Run the function until it ends, or until nothing that is recorded can be answered.

        It may come to more while threads that it has started `are_at_work`.
        Returns whether it has ended; its error is raised. If it has not, the verbs that get no
        answer hold their tickets.
        """
        self._are_at_work = are_at_work
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        main = asyncio.ensure_future(function)
        self._tasks.add(main)
        with self._clock():
            while not main.done():
                await self._settle()
                if not await self._go_on(main):
                    return False
        main.result()
        return True

    async def end(self) -> None:
        """Cancel what is left of the run; what comes of that nobody wants to know."""
        self._is_over = True
        if self._behind is not None:
            self._behind.cancel()
        left = {task for task in self._tasks if not task.done()}
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=1)
        for task in self._tasks:
            if task.done() and not task.cancelled():
                task.exception()

    async def _go_on(self, main: asyncio.Task[Any]) -> bool:
        """Do one thing; return whether there is more to do."""
        if main.done():
            return True
        ticket = self._first()
        if ticket is None or not self._is_next(ticket):
            if ticket is None and self.tickets and self._next >= len(self._places):
                return False
            # Time passes only where nothing else can be what was next.
            if await self._waits_for_more(main, () if ticket else JUMPS):
                return True
            if ticket is None:
                return not self.tickets and await self._wait(main)
        if ticket in self.tickets:
            await self._give(ticket)
        return True

    async def _give(self, ticket: Ticket) -> None:
        # What should have come before, and has not, is not waited for any more.
        for key in ticket.keys:
            self.pass_by(key)
        self.tickets.remove(ticket)
        ticket.turn.set()
        await ticket.over.wait()

    def _first(self) -> Ticket | None:
        recorded = [ticket for ticket in self.tickets if ticket.places is not None]
        return min(recorded, key=lambda ticket: ticket.places or (), default=None)

    def _is_next(self, ticket: Ticket) -> bool:
        return ticket.places is not None and ticket.places[0] <= self._next

    async def _settle(self) -> None:
        """Let the tasks come to their next verbs."""
        for _ in range(ROUNDS):
            await asyncio.sleep(0)

    async def _waits_for_more(self, main: asyncio.Task[Any], jumps: Iterable[int]) -> bool:
        """Give the run time to come to another verb; return whether it did, or has ended."""
        self._news.clear()
        await self._let_thread_work()
        for _ in range(MOST_WAITS):
            may_come = self._are_at_work()
            await self._wait(main, PATIENCE)
            if self._news.is_set() or main.done() or not may_come:
                break
        for jump in jumps:
            if self._news.is_set() or main.done():
                break
            self._skipped += jump
            await self._settle()
            await self._let_thread_work()
            await self._settle()
        return self._news.is_set() or main.done()

    async def _let_thread_work(self) -> None:
        """Wait for what waits for the thread, such as a query.

        But not for ever: what is there may wait for the loop itself, by `async_to_sync`.
        """
        patience = PATIENCE
        if self._behind is None or self._behind.done():
            patience *= MOST_WAITS
            self._behind = asyncio.ensure_future(sync_to_async(_do_nothing)())
        await asyncio.wait({self._behind}, timeout=patience)

    async def _wait(self, main: asyncio.Task[Any], seconds: float | None = None) -> bool:
        news = asyncio.ensure_future(self._news.wait())
        await asyncio.wait({main, news}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        news.cancel()
        return True

    @contextmanager
    def _clock(self) -> Iterator[None]:
        """Let the loop's clock be put forward, for what waits without a verb, as for a timeout."""
        loop = asyncio.get_running_loop()
        real = loop.time
        try:
            loop.time = lambda: real() + self._skipped  # type: ignore[method-assign]
        except AttributeError:
            # Of a loop that is not written in Python. Such waits then take their time.
            yield
            return
        try:
            yield
        finally:
            del loop.time


def _do_nothing() -> None:
    """Be called in the thread where plain functions run."""
