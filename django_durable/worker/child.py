"""A child process of the worker: it runs jobs, and leaves when its supervisor says so or dies."""

from __future__ import annotations

import select
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

from django_durable import execution
from django_durable.errorlog import get_logger
from django_durable.jobtypes import registry
from django_durable.outcomes import Abandoned, GivenBack, Outcome, Rejected
from django_durable.worker import answers
from django_durable.worker.announcer import Announcer
from django_durable.worker.channel import Channel
from django_durable.worker.claimer import Claimer
from django_durable.worker.claimtable import ClaimTable
from django_durable.worker.loops import REMIND_EVERY
from django_durable.worker.options import WorkerOptions
from django_durable.worker.recorder import Recorder
from django_durable.worker.recycling import Recycling
from django_durable.worker.reloading import Imports
from django_durable.worker.running import LoopRunner, ThreadRunner
from django_durable.worker.runs import Run, Runs

logger = get_logger("django_durable.worker")

TICK = 0.25
# How long a run may take to obey an interruption before its slot is given to another child.
OBEY_WITHIN = 2.0
# How long a child that leaves may take to record its last runs, and to tell of them.
CLOSE_WITHIN = 5.0
# How long a slot rests for which no process could be had.
REST = 1.0


class Child:
    """Wire the threads of a child together, and be its main thread."""

    def __init__(
        self, options: WorkerOptions, claimer: UUID, channel: Channel, table: ClaimTable
    ) -> None:
        self._options = options
        self._channel = channel
        # No slots before the supervisor gives some.
        self._runs = Runs(table, 0)
        self._announcer = Announcer(options, self._runs)
        self._recorder = Recorder(self._runs, self._announcer, lambda: self._claimer.hint())
        mixed = any(registry.get(name).is_async for name in options.served_names())
        self._threads = ThreadRunner(self._finished, self._runs.runs_in, frugal=mixed)
        self._tasks = LoopRunner(self._finished)
        self._claimer = Claimer(
            options, claimer, self._runs, self._recorder, self._announcer, self._start
        )
        self._table = table
        self._recycling = Recycling(options, self._runs)
        self._imports = Imports() if options.reload else None
        self._draining = False
        self._replace_asked = False
        self._told_live: int | None = None
        self._told_size = False
        # When it last read what the supervisor has sent.
        self._heard_at = 0.0
        self._remind_at = 0.0
        self._recursion = sys.getrecursionlimit()
        # Interrupted runs that may still obey, and until when.
        self._interrupted: dict[Run, float] = {}
        self._leave_at: float | None = None

    def run(self) -> None:
        """Work until the supervisor says drain, or is gone; returns when nothing is left to do."""
        for loop in (self._recorder.loop, self._announcer.loop, self._claimer.loop):
            loop.start()
        self._table.beat()
        self._channel.send("ready")
        while not self._is_done():
            self._table.beat()
            answers.look()
            self._check_deadlines()
            self._restore_recursion()
            self._check_loops()
            self._report()
            self._wait()
        self._close()

    def _is_done(self) -> bool:
        if self._leave_at is not None and time.monotonic() >= self._leave_at:
            return True
        return self._draining and self._runs.is_idle and self._claimer.loop.join(0)

    def _wait(self) -> None:
        _late, following = self._runs.overdue()
        pause = TICK if not self._draining else 0.02
        if following is not None:
            pause = min(pause, max(following - time.monotonic(), 0))
        readable, _, _ = select.select([self._channel], [], [], pause)
        self._heard_at = time.monotonic()
        self._channel.flush()
        if readable:
            for message in self._channel.receive():
                self._obey(message)
            if self._channel.closed:
                self._orphaned()

    def _obey(self, message: dict[str, Any]) -> None:
        kind = message["kind"]
        if kind == "work":
            self._claimer.hint()
        elif kind == "drain":
            self._drain()
        elif kind == "slots":
            self._runs.slots = message["slots"]
            self._claimer.hint()
        elif kind == "cancel":
            self._cancel(message["jobs"])
        elif kind == "lost":
            self._lose(UUID(message["job"]), message["epoch"])
        elif kind == "shun":
            self._claimer.shun(UUID(message["job"]), message["seconds"])
        elif kind == "apart":
            self._claimer.keep_apart([UUID(job) for job in message["jobs"]])
        elif kind == "announce":
            self._announcer.failed_elsewhere(message)

    def _cancel(self, jobs: list[str]) -> None:
        for job in jobs:
            for run in self._runs.of(UUID(job)):
                run.request_cancel()

    def _lose(self, job: UUID, epoch: int) -> None:
        for run in self._runs.of(job):
            if run.right[1] == epoch:
                run.lose()
                lost = Abandoned(run.right)
                if not run.context.is_parked and run.settle(lost):
                    self._recorder.put(run, lost)

    def _drain(self) -> None:
        if not self._draining:
            self._draining = True
            self._claimer.loop.stop()

    def _orphaned(self) -> None:
        """Go on for as long as the leases last that nobody renews any more, and no longer."""
        if self._leave_at is None:
            logger.error("The supervisor is gone; leaving within the lease")
            self._leave_at = time.monotonic() + self._options.lease * 2 / 3
            self._drain()

    def _start(self, runs: Sequence[Run]) -> list[Run]:
        """Start runs; return those for which no thread, or no event loop, can be had."""
        left = []
        for runner, is_async in ((self._tasks, True), (self._threads, False)):
            group = [run for run in runs if run.is_async is is_async]
            try:
                runner.submit(group)
            except (RuntimeError, OSError):
                left += group
        return left

    def _finished(self, run: Run, outcome: Outcome) -> None:
        """Take the outcome of a function that has returned, from whatever thread it ran in.

        An exception that is thrown into that thread may end this anywhere; it is called again.
        """
        run.took = time.monotonic() - run.context.started
        if run.settle(outcome):
            if isinstance(outcome, Rejected):
                self._shun(outcome)
            elif isinstance(outcome, GivenBack):
                # No longer than the slot rests: a batch would be over with jobs that are shunned.
                self._claimer.shun(run.right[0], REST)
            self._recorder.put(run, outcome)
            if isinstance(outcome, GivenBack):
                self._rest(outcome)
        self._runs.leave(run)

    def _shun(self, rejected: Rejected) -> None:
        """Let the whole worker leave a job alone that it has rejected, for twice its delay."""
        job, seconds = rejected.right[0], 2 * rejected.delay.total_seconds()
        self._claimer.shun(job, seconds)
        if self._options.processes > 1:
            self._channel.send("rejected", job=str(job), seconds=seconds)

    def _rest(self, given: GivenBack) -> None:
        """Keep the slot for a moment: what could not be had is not to be asked for at once."""
        now = time.monotonic()
        if now >= self._remind_at:
            self._remind_at = now + REMIND_EVERY
            logger.warning("No process for an isolated attempt, which goes back: %s", given.why)
        if not self._draining:
            threading.Event().wait(REST)
            self._claimer.hint()

    def _check_deadlines(self) -> None:
        now = time.monotonic()
        for run in self._runs.overdue()[0]:
            late = execution.timed_out(run.context)
            if run.settle(late):
                run.took = now - run.context.started
                run.time_out()
                self._recorder.put(run, late)
                # A thread can't be ended from outside; the others get a moment to obey.
                self._interrupted[run] = now + OBEY_WITHIN if run.can_be_interrupted else now
        live = set(self._runs.live())
        for run, until in list(self._interrupted.items()):
            if run not in live:
                del self._interrupted[run]
            elif now >= until:
                del self._interrupted[run]
                self._runs.strand(run)

    def _restore_recursion(self) -> None:
        """Undo it when a job has made recursion shallower: all threads need the usual depth."""
        if sys.getrecursionlimit() < self._recursion:
            sys.setrecursionlimit(self._recursion)

    def _check_loops(self) -> None:
        """Die rather than go on without one of the threads; the supervisor does the rest."""
        for loop in (self._recorder.loop, self._announcer.loop, self._claimer.loop):
            if loop.has_failed:
                raise RuntimeError(f"the {loop.name} has ended")
        if self._threads.thrown:
            what = ", ".join(self._threads.thrown.popleft() for _ in list(self._threads.thrown))
            logger.warning("Thrown into threads between two runs, which go on: %s", what)
        if self._threads.has_failed() or self._tasks.has_failed():
            raise RuntimeError("a thread that runs jobs has ended")

    def _report(self) -> None:
        """Tell the supervisor what it has to know."""
        if self._options.batch and not self._draining:
            self._report_idleness()
        if not self._draining and not self._replace_asked:
            why = self._recycling.due()
            if why:
                self._replace_asked = True
                self._channel.send("replace", why=why)
            elif self._recycling.used_at_start and not self._told_size:
                self._told_size = True
                self._channel.send("big", mib=self._recycling.used_at_start)
        if self._imports is not None and (files := self._imports.new_files()):
            self._channel.send("imported", files=files)
        if self._draining and self._claimer.loop.join(0):
            live = len(self._runs.live())
            if live != self._told_live:
                self._told_live = live
                self._channel.send("live", live=live)

    def _report_idleness(self) -> None:
        """Tell since when nothing runs here, and of the last look that found nothing due.

        What was recorded is told before, here or by the supervisor, and users' code that heard of
        it may have enqueued more.
        """
        looks = self._claimer.vain_looks
        if looks is None or not self._announcer.is_idle:
            return
        since, looked = max(looks[0], self._announcer.told_at), looks[1]
        if looked < since:
            self._claimer.hint()
        elif looked <= self._heard_at:
            self._channel.send("idle", droppable=True, since=since, looked=looked)

    def _close(self) -> None:
        self._recorder.loop.stop()
        self._wait_until(lambda: self._recorder.loop.join(TICK))
        self._wait_until(lambda: self._announcer.close(TICK))
        self._channel.send("done")
        self._channel.flush()

    def _wait_until(self, is_done: Callable[[], bool]) -> None:
        """Ask until it is done, or has taken too long; a child that still waits is not stuck."""
        end = time.monotonic() + CLOSE_WITHIN
        while not is_done() and time.monotonic() < end:
            self._table.beat()
