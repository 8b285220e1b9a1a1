"""A relay: what stands in for the threads where the plain functions of an async run are called.

A function that waits for its turn in the one thread where most are called would keep those from
being called that come before it.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any

from asgiref.sync import AsyncToSync, SyncToAsync, ThreadSensitiveContext, sync_to_async
from django.db import connections

# More than functions are ever under way: one that waits holds its thread.
MOST_THREADS = 10_000


class Others(ThreadPoolExecutor):
    """Call functions at the same time, in threads with connections of their own."""

    def __init__(self) -> None:
        super().__init__(MOST_THREADS, "beside")
        self._lock = threading.Lock()
        self._at_work = 0
        self._own = threading.local()

    @property
    def are_at_work(self) -> bool:
        """Tell whether a function has not ended that does not stand aside."""
        return self._at_work > 0

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Call a function."""
        future = super().submit(self._call, partial(fn, *args, **kwargs))
        self._count(1)
        future.add_done_callback(lambda _: self._count(-1))
        return future

    def _call(self, call: Callable[[], Any]) -> Any:
        self._own.is_called = True
        return call()

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Count the caller as not at work while it waits, if it was called from here."""
        work = 1 if getattr(self._own, "is_called", False) else 0
        self._count(-work)
        try:
            yield
        finally:
            self._count(work)

    def _count(self, work: int) -> None:
        with self._lock:
            self._at_work += work


class Relayed:
    """Be the call of one function in a thread of the relay."""

    def __init__(self) -> None:
        # What it is let go by, anew each time that it comes back.
        self.go = threading.Event()
        # For so many verbs it stands aside.
        self.away = 0
        self.is_over = False


class Relay(ThreadPoolExecutor):
    """Call functions one at a time, in order, each in a thread of its own, until it stands aside.

    All do so over the connections of the thread where the relay is made.
    """

    def __init__(self) -> None:
        super().__init__(MOST_THREADS, "relay")
        self._shared = [connections[alias] for alias in connections]
        for db in self._shared:
            db.inc_thread_sharing()
        self._lock = threading.Lock()
        self._waiting: deque[threading.Event] = deque()
        self._running: threading.Event | None = None
        # The call that this thread does.
        self._own = threading.local()
        self.others = Others()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Call a function when those before it have ended, or stand aside."""
        call = Relayed()
        self._queue(call.go)
        try:
            future = super().submit(self._call, call, partial(fn, *args, **kwargs))
        except BaseException:
            self._let_go(call.go)
            raise
        future.add_done_callback(lambda done: self._let_go(call.go) if done.cancelled() else None)
        return future

    def _call(self, call: Relayed, function: Callable[[], Any]) -> Any:
        call.go.wait()
        self._own.call = call
        try:
            for db in self._shared:
                connections[db.alias] = db
            return function()
        finally:
            self._own.call = None
            call.is_over = True
            self._let_go(call.go)

    @property
    def call(self) -> Relayed | None:
        """Return the call that this thread does, if it is one of the relay's."""
        found: Relayed | None = getattr(self._own, "call", None)
        return found

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Let others be called while the caller waits."""
        call = self.call
        if call is None:
            with self.others.aside():
                yield
            return
        self._leave(call)
        try:
            yield
        finally:
            self._come_back(call)

    @asynccontextmanager
    async def aside_below(self, call: Relayed | None) -> AsyncIterator[None]:
        """Let others be called while a coroutine waits, if a call waits for that one itself."""
        if call is None or call.is_over:
            yield
            return
        self._leave(call)
        try:
            yield
        finally:
            # In its own thread, which waits for what the coroutine has to do there.
            await sync_to_async(self._come_back)(call)

    def _leave(self, call: Relayed) -> None:
        with self._lock:
            call.away += 1
        self._let_go(call.go)

    def _come_back(self, call: Relayed) -> None:
        with self._lock:
            call.away -= 1
            if call.away:
                return
            call.go = threading.Event()
        self._queue(call.go)
        call.go.wait()

    def _queue(self, go: threading.Event) -> None:
        with self._lock:
            self._waiting.append(go)
            self._go_on()

    def _let_go(self, go: threading.Event) -> None:
        with self._lock:
            if self._running is go:
                self._running = None
            elif go in self._waiting:
                self._waiting.remove(go)
            self._go_on()

    def _go_on(self) -> None:
        if self._running is None and self._waiting:
            self._running = self._waiting.popleft()
            self._running.set()

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Be the threads of all that is called from here, on an event loop of its own."""
        asyncio.get_running_loop().set_default_executor(self.others)
        own = ThreadSensitiveContext()
        SyncToAsync.context_to_thread_executor[own] = self
        token = SyncToAsync.thread_sensitive_context.set(own)
        # It would come first.
        above = getattr(AsyncToSync.executors, "current", None)
        AsyncToSync.executors.current = None
        try:
            yield
        finally:
            AsyncToSync.executors.current = above
            SyncToAsync.thread_sensitive_context.reset(token)

    def close(self) -> None:
        """Wait until all functions have ended; none is called any more."""
        self.shutdown()
        for db in self._shared:
            db.dec_thread_sharing()
