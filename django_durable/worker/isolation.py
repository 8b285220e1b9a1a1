"""Runs in a process of their own (`isolation="process"`), which a timeout or a cancel really kills.

The processes are forked from a server that has loaded the project and nothing else, so that one
starts within milliseconds and inherits no thread, connection or lock.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from multiprocessing.connection import wait
from typing import Any

from django_durable import payloads
from django_durable.choices import AttemptOutcome, DeathReason
from django_durable.errortext import ErrorText
from django_durable.execution import backoff_of
from django_durable.outcomes import Abandoned, Outcome, outcome_from_tuple
from django_durable.store import Failure
from django_durable.worker import isolated
from django_durable.worker.runs import Run

# How long a process may take to end after its answer.
LINGER = 2.0

_server: Any = multiprocessing.get_context("forkserver")
_server.set_forkserver_preload(["django_durable.worker.preload"])


class Killer:
    """Kill the process of a run and all that it started, now or as soon as it has started."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: Any = None
        self._wanted = False

    def started(self, process: Any) -> None:
        """Take the process."""
        with self._lock:
            self._process = process
            if self._wanted:
                self._kill()

    def __call__(self) -> None:
        """Kill."""
        with self._lock:
            self._wanted = True
            if self._process is not None:
                self._kill()

    def _kill(self) -> None:
        # The process leads a group of its own as soon as it runs.
        for kill in (lambda pid: os.killpg(pid, signal.SIGKILL), _kill_one):
            try:
                kill(self._process.pid)
            except ProcessLookupError:
                continue


def _kill_one(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def execute(run: Run) -> Outcome:
    """Run the function in a process of its own and say what it came to; raises nothing."""
    killer = Killer()
    run.kill = killer
    context = run.context
    if context.cancel_requested or context.is_abandoned:
        return _died(run, None)
    receiver = None
    try:
        receiver, sender = _server.Pipe(duplex=False)
        text = payloads.encode(list(context.claim), where="the claim", limit=None)
        process = _server.Process(target=isolated.run, args=(sender, text))
        process.start()
        killer.started(process)
        sender.close()
        answer = _answer(receiver, process)
        process.join(LINGER)
        if process.is_alive():
            # A thread or a process that the job has started keeps it; the job itself has ended.
            killer()
            process.join()
        return _died(run, process.exitcode) if answer is None else answer
    except OSError as error:
        # No process can be had: as if it had died at once.
        return _died(run, None, str(error))
    finally:
        run.kill = None
        if receiver is not None:
            receiver.close()


def _answer(receiver: Any, process: Any) -> Outcome | None:
    wait([receiver, process.sentinel])
    try:
        if receiver.poll():
            return outcome_from_tuple(payloads.decode(receiver.recv_bytes().decode()))
    except (EOFError, OSError):
        pass
    return None


def _died(run: Run, code: int | None, why: str = "") -> Outcome:
    """Say what it means that the process ended without an answer."""
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
    if not why:
        why = f"was killed by signal {-code}" if code and code < 0 else f"ended with code {code}"
    claim = context.claim
    return Failure(
        context.right,
        ErrorText.of("LeaseLost", f"the process of the attempt {why}"),
        outcome=AttemptOutcome.LOST,
        delay=backoff_of(claim.options, context.job_type).delay(max(claim.attempt, 1)),
        reason=DeathReason.LOST,
    )
