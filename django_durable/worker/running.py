"""Where the functions run: plain ones in threads, async ones on one event loop."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from asgiref.sync import sync_to_async
from django.db.backends.signals import connection_created

from django_durable import execution
from django_durable.outcomes import Outcome
from django_durable.worker import connections
from django_durable.worker.runs import Run

Finished = Callable[[Run, Outcome], None]

# True in what an async run calls, its excursions into threads included.
_in_async_run: ContextVar[bool] = ContextVar("durable_in_async_run", default=False)


class ThreadRunner:
    """Run plain functions, each in a thread of its own for as long as it runs."""

    def __init__(self, finished: Finished) -> None:
        self._finished = finished
        self._queue: queue.SimpleQueue[Run] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._idle = 0
        self._count = 0

    def submit(self, run: Run) -> None:
        """Start a run; a new thread is made when none is idle."""
        with self._lock:
            if self._idle > 0:
                self._idle -= 1
            else:
                self._count += 1
                threading.Thread(target=self._work, name=f"job-{self._count}", daemon=True).start()
        self._queue.put(run)

    def _work(self) -> None:
        while True:
            run = self._queue.get()
            connections.clean()
            outcome = execution.execute(run.context)
            connections.clean()
            with self._lock:
                self._idle += 1
            self._finished(run, outcome)


class LoopRunner:
    """Run async functions on one event loop, in a thread of its own."""

    def __init__(self, finished: Finished) -> None:
        self._finished = finished
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        # Async code reaches the database through a thread that all its runs share. It need not be
        # asked to clean up, which costs a switch to it and back, while it has no connection.
        self._connected = False
        connection_created.connect(self._notice, weak=False)

    def submit(self, run: Run) -> None:
        """Start a run on the loop, which is made for the first one."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            threading.Thread(target=self._loop.run_forever, name="loop", daemon=True).start()
        self._loop.call_soon_threadsafe(self._start, run)

    def _notice(self, **_: Any) -> None:
        if _in_async_run.get():
            self._connected = True

    def _start(self, run: Run) -> None:
        assert self._loop is not None
        task = self._loop.create_task(self._work(run))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        loop = self._loop
        run.interrupt = lambda: loop.call_soon_threadsafe(task.cancel)
        if run.context.cancel_requested or run.context.is_abandoned:
            task.cancel()

    async def _work(self, run: Run) -> None:
        _in_async_run.set(True)
        try:
            outcome = await execution.aexecute(run.context)
        except BaseException as error:  # noqa: BLE001 - a cancel before the first step
            outcome = execution.judge(run.context, error)
        if self._connected:
            await sync_to_async(connections.clean)()
        self._finished(run, outcome)
