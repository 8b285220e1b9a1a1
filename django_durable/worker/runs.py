"""The claims that a child holds: which run, which only wait to be recorded, and what fits."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

from django_durable.context import JobContext
from django_durable.exceptions import CancelRequested, ClaimLost, RunTimedOut
from django_durable.outcomes import Outcome
from django_durable.store import Right
from django_durable.worker.claimtable import ClaimTable


class Run:
    """Be one claim on this worker; it is settled once, by whoever comes first."""

    took = 0.0
    # What its function has come to, and whether it has been called at all.
    outcome: Outcome | None = None
    is_called = False
    # Ends the process of an isolated run.
    kill: Callable[[], None] | None = None
    _task: asyncio.Task[Any] | None = None
    _loop: asyncio.AbstractEventLoop | None = None
    _timed_out = False
    _is_told = False

    def __init__(self, context: JobContext, deadline: float | None) -> None:
        self.context = context
        self.right = context.right
        self.is_isolated = context.options.isolation == "process"
        self.is_async = context.is_async and not self.is_isolated
        self.deadline = deadline
        self._outcomes: list[Outcome] = []

    def settle(self, outcome: Outcome) -> bool:
        """Return True for the first outcome, which is the one that counts.

        Also when it is asked again for that one, by whom an exception has kept from the answer.
        """
        self._outcomes.append(outcome)
        return self._outcomes[0] is outcome

    @property
    def can_be_interrupted(self) -> bool:
        """Tell whether the run can be ended from outside."""
        return self.is_async or self.is_isolated

    @property
    def is_settled(self) -> bool:
        """Tell whether an outcome has been chosen."""
        return bool(self._outcomes)

    @property
    def is_timed_out(self) -> bool:
        """Tell whether the run has overrun its timeout."""
        return self._timed_out

    def runs_as(self, task: asyncio.Task[Any], loop: asyncio.AbstractEventLoop) -> None:
        """Take the task that runs an async function, by which it can be ended from outside.

        What came before is for the task to find: one that is cancelled before its first step ends
        without running a line, and nobody would hear of its end.
        """
        self._task, self._loop = task, loop

    def _interrupt(self) -> None:
        if self._task is not None and self._loop is not None:
            self._loop.call_soon_threadsafe(self._task.cancel)
        kill = self.kill
        if kill is not None:
            kill()

    def request_cancel(self) -> None:
        """Let the run learn that somebody asked to cancel its job; once, however often it is told.

        Async code that is cancelled may be busy with its cleaning up.
        """
        if self._is_told:
            return
        self._is_told = True
        self.context.cancel_requested = True
        self.context.stop(CancelRequested())
        self._interrupt()

    def lose(self) -> None:
        """Let the run learn that its claim is lost; one that has parked let go of it itself."""
        if self.context.is_parked:
            return
        self.context.stop(ClaimLost("another claim has taken the job"))
        self._interrupt()

    def time_out(self) -> None:
        """Let the run learn that it has overrun its timeout."""
        self._timed_out = True
        self.context.stop(RunTimedOut())
        self._interrupt()


class Runs:
    """Know all runs of the child; thread-safe."""

    def __init__(self, table: ClaimTable, slots: int) -> None:
        self._lock = threading.Lock()
        self._table = table
        # By run, each with its place in the table: reading a UUID as a number, to look it up, would
        # take longer than all else that is done here.
        self._held: dict[Run, int] = {}
        self._live: set[Run] = set()
        self._stuck: set[Run] = set()
        self.slots = slots
        self.taken = 0
        # Called when there is room for `wanted` claims, or when the last claim is gone.
        self.changed: Callable[[], None] = lambda: None
        self.wanted: int | None = None

    def room(self) -> int:
        """Return how many claims the child may take now."""
        with self._lock:
            return min(self._free_slots(), self._table.free)

    def _free_slots(self) -> int:
        return self.slots - len(self._live) - len(self._stuck)

    def add(self, runs: Sequence[Run]) -> None:
        """Enter claims, before their runs start."""
        with self._lock:
            for run in runs:
                self._held[run] = self._table.add(run.right, run.deadline)
            self._live.update(runs)
            self.taken += len(runs)

    def runs_in(self, run: Run, pid: int, started: int) -> None:
        """Note the process of an isolated run, for the supervisor to end if the child can't."""
        with self._lock:
            place = self._held.get(run)
            if place is not None:
                self._table.note_process(place, pid, started)

    def leave(self, run: Run) -> None:
        """Free the slot of a run whose function has returned."""
        with self._lock:
            self._live.discard(run)
            self._stuck.discard(run)
            enough = self._is_enough()
        if enough:
            self.changed()

    def strand(self, run: Run) -> None:
        """Count a run no more that can't be ended in time; its slot is another child's."""
        with self._lock:
            if run in self._live:
                self._live.discard(run)
                self._stuck.add(run)

    @property
    def stuck(self) -> int:
        """Return how many threads hold runs that have timed out."""
        return len(self._stuck)

    def forget(self, runs: Sequence[Run]) -> None:
        """Let go of claims whose end is recorded, or which are lost."""
        with self._lock:
            for run in runs:
                place = self._held.pop(run, None)
                if place is not None:
                    self._table.remove(place)
            enough = self._is_enough() or not self._held
        if enough:
            self.changed()

    def _is_enough(self) -> bool:
        wanted = self.wanted
        return wanted is not None and self._table.free >= wanted and self._free_slots() >= wanted

    def rights(self) -> list[Right]:
        """Return the claims that the child holds."""
        with self._lock:
            return [run.right for run in self._held]

    def holds(self, run: Run) -> bool:
        """Tell whether the child still has the claim of a run."""
        return run in self._held

    def live(self) -> list[Run]:
        """Return the runs whose function has not returned."""
        with self._lock:
            return list(self._live)

    @property
    def is_idle(self) -> bool:
        """Tell whether nothing runs and nothing waits to be recorded."""
        with self._lock:
            return not self._live and not self._held

    def of(self, job: UUID) -> list[Run]:
        """Return the runs of a job."""
        with self._lock:
            return [run for run in self._held if run.right[0] == job]

    def overdue(self) -> tuple[list[Run], float | None]:
        """Return the live runs past their deadline, and when the next one falls due."""
        now = time.monotonic()
        late: list[Run] = []
        following: float | None = None
        for run in self.live():
            if run.deadline is None or run.is_settled:
                continue
            if run.deadline <= now:
                late.append(run)
            elif following is None or run.deadline < following:
                following = run.deadline
        return late, following
