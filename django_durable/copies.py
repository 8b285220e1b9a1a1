"""Copies of the process that jobs make by `fork`: one that comes back from its job ends.

It shares connections and the event loop with the original, which alone goes on and records.
"""

from __future__ import annotations

import asyncio
import os
import threading


def leave_if_copy(original: int) -> None:
    """End this process at once, unless it is the original, which has this id."""
    if os.getpid() != original:
        os._exit(0)


def end_copies_of_loop(loop: asyncio.AbstractEventLoop) -> None:
    """End copies that come back to the loop, which this thread runs, or call it from another.

    One that went on with it would run what others have put on it, and take events that are the
    original's. Processes that end without coming back, such as those of `multiprocessing`, are
    none the worse for it.
    """
    thread = threading.get_ident()

    def in_copy() -> None:
        if loop.is_closed():
            return
        if threading.get_ident() == thread:
            # What is ready now is the original's to call. Not every kind of loop tells.
            getattr(loop, "_ready", []).clear()
            loop.call_soon(os._exit, 0)
        else:
            # By this a call in a thread gives its result to the loop, which runs no more.
            loop.call_soon_threadsafe = lambda *_, **__: os._exit(0)  # type: ignore[method-assign]

    os.register_at_fork(after_in_child=in_copy)
