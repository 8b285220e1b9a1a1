"""The supervisor: keeps its children alive, their leases fresh, and ends everything in order."""

from __future__ import annotations

import json
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable
from typing import Any
from uuid import UUID, uuid4

from django_durable.store import Right, WorkerCard
from django_durable.worker.channel import Channel
from django_durable.worker.claimtable import ClaimTable
from django_durable.worker.listener import Listener
from django_durable.worker.options import WorkerOptions
from django_durable.worker.renewer import Renewer

logger = logging.getLogger("django_durable.worker")

TICK = 0.25
# A child that dies again and again right after its start is started less and less often.
FIRST_RESTART = 0.1
LONGEST_RESTART = 30.0
HEALTHY_AFTER = 10.0

_BOOT = (
    "import json, os, sys;"
    "sys.path[:] = json.loads(os.environ.pop('DURABLE_SYS_PATH'));"
    "from django_durable.worker.boot import main;"
    "main()"
)


class ChildProcess:
    """Be the supervisor's side of one child."""

    def __init__(self, options: WorkerOptions, slots: int) -> None:
        self.claimer = uuid4()
        self.slots = slots
        self.started = time.monotonic()
        self.is_ready = False
        self.is_done = False
        self.idle_at = 0.0
        # Twice the slots: a run that has ended leaves its slot before its end is recorded.
        self.table = ClaimTable.create(2 * slots)
        ours, theirs = socket.socketpair()
        self.channel = Channel(ours)
        with theirs:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    *_interpreter_flags(),
                    "-c",
                    _BOOT,
                    options.to_json(),
                    str(theirs.fileno()),
                    str(self.table.fd),
                    str(2 * slots),
                    str(slots),
                    str(self.claimer),
                ],
                pass_fds=(theirs.fileno(), self.table.fd),
                stdin=subprocess.DEVNULL,
                env={**os.environ, "DURABLE_SYS_PATH": json.dumps(sys.path)},
                # A group of its own: a job that signals its group must not stop the worker.
                process_group=0,
            )

    @property
    def is_alive(self) -> bool:
        """Tell whether the process still runs."""
        return self.process.poll() is None

    def rights(self) -> list[Right]:
        """Return the claims that the child holds."""
        return self.table.rights()

    def close(self) -> None:
        """Let go of what the child left."""
        self.channel.close()
        self.table.close()


def _interpreter_flags() -> list[str]:
    flags = []
    if sys.flags.dev_mode:
        flags += ["-X", "dev"]
    return flags + [f"-W{option}" for option in sys.warnoptions]


class Supervisor:
    """Run one worker command: children, leases, notifications, the end."""

    def __init__(self, options: WorkerOptions, card: WorkerCard) -> None:
        self._options = options
        self._children: list[ChildProcess] = []
        self._stops = 0
        self._give_up_at: float | None = None
        self._restart_at = 0.0
        self._restart_pause = FIRST_RESTART
        self._incarnation = card.incarnation
        self._renewer = Renewer(
            options,
            card,
            self._rights,
            self._lost,
            self._cancel,
            self.ask_to_stop,
            self._announce,
        )
        self._listener = Listener(self._work, lambda ids: self._cancel(UUID(i) for i in ids))
        self._wakeup, wakeup = socket.socketpair()
        self._wakeup.setblocking(False)
        wakeup.setblocking(False)
        self._wakeup_write = wakeup

    def run(self) -> int:
        """Work until a signal, or (batch) until nothing is left to do; return the exit code."""
        self._catch_signals()
        self._renewer.loop.start()
        self._listener.loop.start()
        try:
            while not self._is_over():
                self._keep_children()
                self._wait()
        finally:
            self._end()
        return 0

    def ask_to_stop(self) -> None:
        """Stop as a first signal does; a second time, as a second one."""
        self._stops += 1
        self._poke()

    def _catch_signals(self) -> None:
        signal.set_wakeup_fd(self._wakeup_write.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self.ask_to_stop())

    def _poke(self) -> None:
        try:
            self._wakeup_write.send(b"!")
        except OSError:
            # Full, so it wakes anyway.
            pass

    # What the threads of the renewer and the listener call.

    def _rights(self) -> list[Right]:
        return [right for child in self._alive() for right in child.rights()]

    def _alive(self) -> list[ChildProcess]:
        return [child for child in list(self._children) if child.is_alive]

    def _lost(self, right: Right) -> None:
        for child in self._alive():
            child.channel.send("lost", job=str(right[0]), epoch=right[1])

    def _announce(self, told: dict[str, Any]) -> bool:
        """Let a child send the signals of what was recorded here; no users' code runs here."""
        for child in self._alive():
            if child.is_ready:
                child.channel.send("announce", **told)
                return True
        return False

    def _cancel(self, jobs: Iterable[UUID]) -> None:
        ids = [str(job) for job in jobs]
        for child in self._alive():
            child.channel.send("cancel", droppable=True, jobs=ids)

    def _work(self) -> None:
        for child in self._alive():
            child.channel.send("work", droppable=True)

    # The main loop.

    def _is_over(self) -> bool:
        return bool(self._stops) and not self._children

    def _keep_children(self) -> None:
        for child in list(self._children):
            if not child.is_alive:
                self._bury(child)
        if self._stops:
            self._stop_children()
        elif not self._children and time.monotonic() >= self._restart_at:
            self._children.append(ChildProcess(self._options, self._options.concurrency))

    def _bury(self, child: ChildProcess) -> None:
        """Let go of a child that has ended; what it held is lost, and READY again at once."""
        # A last look at its messages, since "done" may be among them.
        self._read(child)
        self._children.remove(child)
        child.close()
        if child.is_done:
            return
        code = child.process.returncode
        how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
        logger.error("Child process %d %s", child.process.pid, how)
        if time.monotonic() - child.started > HEALTHY_AFTER:
            self._restart_pause = FIRST_RESTART
        self._restart_at = time.monotonic() + self._restart_pause
        self._restart_pause = min(self._restart_pause * 2, LONGEST_RESTART)
        self._renewer.child_died(child.claimer, f"its worker process {how}")

    def _stop_children(self) -> None:
        if self._give_up_at is None:
            self._give_up_at = time.monotonic() + self._options.shutdown_timeout
            self._renewer.draining = True
            self._renewer.loop.wake()
            logger.info("Stopping: what runs may finish, nothing new is claimed")
            for child in self._alive():
                child.channel.send("drain")
        if self._stops > 1 or time.monotonic() >= self._give_up_at:
            for child in self._alive():
                logger.warning("Killing child process %d; its jobs go back", child.process.pid)
                child.process.kill()
                child.process.wait()
                child.is_done = True
                self._renewer.give_back(child.claimer)

    def _wait(self) -> None:
        sources = [self._wakeup, *(child.channel for child in self._children)]
        readable, _, _ = select.select(sources, [], [], TICK)
        if self._wakeup in readable:
            try:
                self._wakeup.recv(4096)
            except BlockingIOError:
                pass
        for child in self._children:
            child.channel.flush()
            if child.channel in readable:
                self._read(child)

    def _read(self, child: ChildProcess) -> None:
        for message in child.channel.receive():
            self._hear(child, message)
        if child.channel.closed and child.is_alive:
            # Its end of the pair is closed, so it is about to end.
            try:
                child.process.wait(1.0)
            except subprocess.TimeoutExpired:
                child.process.kill()
                child.process.wait()

    def _hear(self, child: ChildProcess, message: dict[str, Any]) -> None:
        kind = message["kind"]
        if kind == "ready":
            child.is_ready = True
            child.channel.send("slots", slots=child.slots)
            for told in self._renewer.untold():
                child.channel.send("announce", **told)
        elif kind == "done":
            child.is_done = True
        elif kind == "idle":
            child.idle_at = time.monotonic()
            if all(time.monotonic() - each.idle_at < 1.0 for each in self._children):
                self._stops = max(self._stops, 1)

    def _end(self) -> None:
        for child in self._alive():
            child.process.kill()
            child.process.wait()
            self._renewer.give_back(child.claimer)
        self._listener.loop.stop()
        self._renewer.finish(timeout=5.0)
        self._listener.loop.join(2.0)
        self._listener.close()
