"""Plain functions of users, called from async code."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from types import TracebackType
from typing import Any

from asgiref.sync import sync_to_async


def in_thread(func: Callable[..., Any]) -> Callable[..., Any]:
    """Do what `sync_to_async` does for a function that may raise StopIteration.

    No future takes that, so whoever awaits it would wait for ever. It becomes a RuntimeError, as
    where it leaves a coroutine.
    """
    return sync_to_async(_without_stop_iteration(func))


def _without_stop_iteration(func: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return func(*args, **kwargs)
        except StopIteration as error:
            raise RuntimeError("the function raised StopIteration") from error

    return call


async def until_done(call: asyncio.Future[Any]) -> None:
    """Wait until a call in a thread has ended, also when cancelled meanwhile: it can't be."""
    while not call.done():
        with suppress(asyncio.CancelledError):
            await asyncio.shield(call)


class Uncancelled:
    """Be a block in which what is called in the thread is awaited to its end, and not dropped.

    A cancellation that comes meanwhile is raised at the end of the block, instead of whatever the
    calls came to but what ends the run.
    """

    # The first one that has come.
    cancellation: asyncio.CancelledError | None = None

    def __enter__(self) -> Uncancelled:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        is_more = error is not None and not isinstance(error, Exception | asyncio.CancelledError)
        if self.cancellation is not None and not is_more:
            raise self.cancellation

    async def call(self, func: Callable[[], Any]) -> Any:
        """Return what a function comes to in the thread.

        If it is cancelled before its turn it is not called, and the cancellation raised. One that
        has begun can't be interrupted, but for a coroutine that it waits for by `async_to_sync`.
        """
        call = _Call(_without_stop_iteration(func))
        try:
            await sync_to_async(call.run)()
        except asyncio.CancelledError as error:
            if call.take():
                raise
            self._note(error)
            await self._wait_for(asyncio.wrap_future(call.end))
        try:
            return call.outcome.result()
        finally:
            # The error holds this frame.
            del call

    async def finish(self, func: Callable[..., Any], *args: Any) -> Any:
        """Return what a function comes to in the thread, whose turn comes also if cancelled."""
        call = asyncio.ensure_future(in_thread(func)(*args))
        await self._wait_for(call)
        try:
            return call.result()
        finally:
            del call

    async def _wait_for(self, call: asyncio.Future[Any]) -> None:
        while not call.done():
            try:
                await asyncio.wait({call})
            except asyncio.CancelledError as error:
                self._note(error)

    def _note(self, error: asyncio.CancelledError) -> None:
        if self.cancellation is None:
            self.cancellation = error


class _Call:
    """Be a call that whoever awaits it can give up until it begins, and not any more then."""

    def __init__(self, func: Callable[[], Any]) -> None:
        self._func = func
        self._taken = threading.Lock()
        self.outcome: Future[Any] = Future()
        # Tells of no error, which somebody would have to hear.
        self.end: Future[None] = Future()

    def take(self) -> bool:
        """Return whether nobody has taken it before, to do it or to give it up."""
        return self._taken.acquire(blocking=False)

    def run(self) -> None:
        """Call the function, unless it was given up."""
        if not self.take():
            return
        try:
            # In a context of its own: whoever is cancelled meanwhile gets what the call has set in
            # it by then, such as that it is inside a step.
            self.outcome.set_result(contextvars.copy_context().run(self._func))
        except BaseException as error:  # noqa: BLE001 - whoever awaits it gets it
            self.outcome.set_exception(error)
        finally:
            self.end.set_result(None)
