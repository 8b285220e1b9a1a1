"""Runs in a process of their own (`isolation="process"`), which a timeout or a cancel really kills.

The processes are forked from a server that has loaded the project and nothing else, so that one
starts within milliseconds and inherits no thread, connection or lock.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections.abc import Callable
from functools import partial
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import wait
from typing import Any

from django_durable import payloads
from django_durable.choices import AttemptOutcome, DeathReason
from django_durable.errortext import ErrorText
from django_durable.execution import backoff_of
from django_durable.outcomes import Abandoned, GivenBack, Outcome, outcome_from_tuple
from django_durable.store import Failure
from django_durable.worker import isolated, processtree
from django_durable.worker.runs import Run
from django_durable.worker.stopsignals import stops_held_off
from django_durable.worker.streams import empty_standard_streams

# How long a process may take to end after its answer.
LINGER = 2.0
# So long, in seconds, before its timeout an attempt that has answered is ended for good: it is
# recorded after that.
BEFORE_DEADLINE = 0.2
# What is said of the end of a process whose server is gone, which is not known; and how often to
# look whether it has ended.
SERVER_GONE = 255
LOOK_EVERY = 0.2
# How many descriptors a start takes, and some for what other threads open meanwhile.
DESCRIPTORS = 12

_server: Any = multiprocessing.get_context("forkserver")
_server.set_forkserver_preload(["django_durable.worker.preload"])

_starting = threading.Lock()


class Killer:
    """Kill the process of a run and all that it started, now or as soon as it has started."""

    def __init__(self, note: Callable[[int, int], None]) -> None:
        self._note = note
        self._lock = threading.Lock()
        self._process: Any = None
        self._started = 0
        self._wanted = False

    def started(self, process: Any) -> None:
        """Take the process."""
        with self._lock:
            self._process = process
            self._started = processtree.start_of(process.pid)
            self._note(process.pid, self._started)
            if self._wanted:
                self._kill()

    def __call__(self) -> None:
        """Kill."""
        with self._lock:
            self._wanted = True
            if self._process is not None:
                self._kill()

    @property
    def is_needed(self) -> bool:
        """Tell whether the process still runs, also if its server is gone and does not tell."""
        return processtree.is_running(self._process.pid, self._started)

    def _kill(self) -> None:
        processtree.kill_tree(self._process.pid, self._started)


def execute(run: Run, note: Callable[[Run, int, int], None]) -> Outcome:
    """Run the function in a process of its own and say what it came to.

    The id of the process is noted, and when it started, before it knows what to run.
    """
    killer = Killer(partial(note, run))
    run.kill = killer
    context = run.context
    if context.cancel_requested or context.is_abandoned:
        return _died(run, None)
    told = [list(context.claim), context.lease]
    text = payloads.encode(told, where="the claim", limit=None)
    try:
        process, ours = _start(killer, text.encode())
    except Exception as error:  # noqa: BLE001 - whatever it is, the function was not called
        run.kill = None
        return _died(run, None, str(error) or type(error).__name__)
    try:
        has_begun = _receive(ours, process, killer) == isolated.BEGUN
        answer = _receive(ours, process, killer) if has_begun else None
        process.join(_patience(run))
        if killer.is_needed:
            # A thread or a process that the job has started keeps it; the job itself has ended.
            killer()
            process.join()
    except BaseException:
        killer()
        raise
    finally:
        run.kill = None
        ours.close()
    if answer is not None:
        return outcome_from_tuple(payloads.decode(answer.decode()))
    how = processtree.ending_of(process.exitcode)
    return _died(run, how) if has_begun else _died(run, None, f"it {how} before it began")


def _patience(run: Run) -> float:
    """Return how long a process may take to end after its answer, which is to count in time."""
    if run.deadline is None:
        return LINGER
    return min(LINGER, max(run.deadline - time.monotonic() - BEFORE_DEADLINE, 0.0))


def _start(killer: Killer, claim: bytes) -> tuple[Any, Any]:
    """Start a process and give it the claim; what is raised says that the function is not called.

    A process that was started all the same ends by itself: it waits for the claim.
    """
    ours, theirs = _server.Pipe()
    try:
        with theirs, _starting:
            # What `Process.start` stumbles over: streams that take nothing, a folder that is gone.
            empty_standard_streams()
            _leave_gone_folder()
            _start_server()
            _see_to_descriptors()
            process = _server.Process(target=isolated.run, args=(theirs,))
            process.start()
        killer.started(process)
        ours.send_bytes(claim)
    except BaseException:
        killer()
        ours.close()
        raise
    return process, ours


def _leave_gone_folder() -> None:
    try:
        os.getcwd()  # noqa: PTH109 - as `Process.start` asks
    except FileNotFoundError:
        os.chdir("/")


def _start_server() -> None:
    """Start the server, unless it runs, and keep it from a stop that comes before it is ready."""
    # First, since it lets the signals to stop in again.
    resource_tracker.ensure_running()
    with stops_held_off():
        forkserver.ensure_running()


def _see_to_descriptors() -> None:
    """Raise `OSError` unless there are as many as a start takes.

    One that fails half way would end the server.
    """
    taken: list[int] = []
    try:
        for _ in range(DESCRIPTORS):
            taken.append(os.dup(0))  # noqa: PERF401 - those before a failure are closed
    finally:
        for descriptor in taken:
            os.close(descriptor)


def _receive(ours: Any, process: Any, killer: Killer) -> bytes | None:
    """Receive what a process sends next; None, if it ends first."""
    wait([ours, process.sentinel])
    try:
        while not ours.poll() and process.exitcode == SERVER_GONE and killer.is_needed:
            wait([ours], LOOK_EVERY)
        if ours.poll():
            received: bytes = ours.recv_bytes()
            return received
    except (EOFError, OSError):
        pass
    return None


def _died(run: Run, how: str | None, why_not: str = "") -> Outcome:
    """Say what it means that there was no answer: how the process ended, or why it never began."""
    context = run.context
    if context.is_abandoned:
        return Abandoned(context.right)
    if context.cancel_requested:
        return Failure(
            context.right,
            ErrorText.of("CancelRequested", "its process was killed"),
            outcome=AttemptOutcome.CANCELLED,
            retryable=False,
            cancel=True,
        )
    if how is None:
        return GivenBack(context.right, why_not)
    claim = context.claim
    return Failure(
        context.right,
        ErrorText.of("LeaseLost", f"the process of the attempt {how}"),
        outcome=AttemptOutcome.LOST,
        delay=backoff_of(claim.options, context.job_type).delay(max(claim.attempt, 1)),
        reason=DeathReason.LOST,
    )
