"""Plain functions of users, called from async code."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from asgiref.sync import sync_to_async


def in_thread(func: Callable[..., Any]) -> Callable[..., Any]:
    """Do what `sync_to_async` does for a function that may raise StopIteration.

    No future takes that, so whoever awaits it would wait for ever. It becomes a RuntimeError, as
    where it leaves a coroutine.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return func(*args, **kwargs)
        except StopIteration as error:
            raise RuntimeError("the function raised StopIteration") from error

    return sync_to_async(call)


async def until_done(call: asyncio.Future[Any]) -> None:
    """Wait until a call in a thread has ended, also when cancelled meanwhile: it can't be."""
    while not call.done():
        with suppress(asyncio.CancelledError):
            await asyncio.shield(call)
