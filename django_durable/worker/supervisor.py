"""The supervisor: keeps its children alive, their leases fresh, and ends everything in order."""

from __future__ import annotations

import contextlib
import select
import signal
import socket
import subprocess
import time
from collections.abc import Iterable
from typing import Any
from uuid import UUID

from django_durable.errorlog import get_logger
from django_durable.store import Right, WorkerCard
from django_durable.worker import answers
from django_durable.worker.childprocess import ChildProcess, Place
from django_durable.worker.listener import Listener
from django_durable.worker.options import WorkerOptions
from django_durable.worker.processtree import ending_of
from django_durable.worker.reloading import Watcher
from django_durable.worker.renewer import Renewer

logger = get_logger("django_durable.worker")

TICK = 0.25
# A child records the timeouts of its runs by itself; one that has not by then can't.
OVERDUE_AFTER = 1.0


class Supervisor:
    """Run one worker command: children, leases, notifications, the end."""

    def __init__(self, options: WorkerOptions, card: WorkerCard) -> None:
        self._options = options
        self._places = [Place(options) for _ in range(options.processes)]
        self._stops = 0
        self._give_up_at: float | None = None
        self._renewer = Renewer(
            options,
            card,
            self._rights,
            self._lost,
            self._cancel,
            self.ask_to_stop,
            self._announce,
            self._keep_apart,
        )
        self._listener = Listener(
            self._work,
            lambda ids: self._cancel(UUID(text) for text in ids),
            # A renewal tells of each claim whether its job is to be cancelled, and the heartbeat
            # after it whether this worker is to stop.
            self._renewer.loop.wake,
        )
        self._has_warned_of_size = False
        self._buried_at = 0.0
        self._watcher = Watcher() if options.reload else None
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
                answers.look()
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
        # A full one wakes anyway.
        with contextlib.suppress(OSError):
            self._wakeup_write.send(b"!")

    def _children(self) -> list[ChildProcess]:
        return [child for place in self._places for child in place.children()]

    # What the threads of the renewer and the listener call.

    def _alive(self) -> list[ChildProcess]:
        return [child for child in self._children() if child.is_alive]

    def _rights(self) -> list[Right]:
        return [right for child in self._alive() for right in child.rights()]

    def _lost(self, right: Right) -> None:
        for child in self._alive():
            child.channel.send("lost", job=str(right[0]), epoch=right[1])

    def _announce(self, told: dict[str, Any]) -> bool:
        """Let a child send the signals of what was recorded here; no users' code runs here."""
        for child in self._alive():
            if child.is_ready and not child.is_quiet:
                child.channel.send("announce", **told)
                return True
        return False

    def _keep_apart(self, suspects: Iterable[UUID]) -> None:
        ids = [str(job) for job in suspects]
        # Also to one that is still coming up: what it is told waits for it.
        for child in self._alive():
            child.channel.send("apart", jobs=ids)

    def _cancel(self, jobs: Iterable[UUID]) -> None:
        ids = [str(job) for job in jobs]
        for child in self._alive():
            child.channel.send("cancel", droppable=True, jobs=ids)

    def _work(self) -> None:
        for child in self._alive():
            child.channel.send("work", droppable=True)

    # The main loop.

    def _is_over(self) -> bool:
        return bool(self._stops) and not self._children()

    def _keep_children(self) -> None:
        for place in self._places:
            for child in place.children():
                if not child.is_alive:
                    self._bury(place, child)
                elif child.is_quiet:
                    self._watch_over(place, child)
        if self._stops:
            self._stop_children()
            return
        changed = self._watcher is not None and self._watcher.has_changed()
        for place in self._places:
            if changed:
                place.reload()
            else:
                place.staff()

    def _bury(self, place: Place, child: ChildProcess) -> None:
        """Let go of a child that has ended; what it held is lost, and READY again at once."""
        # A last look at its messages, since "done" may be among them.
        self._read(place, child)
        held = child.entries()
        place.bury(child, failed=not child.is_done)
        self._buried_at = time.monotonic()
        if child.is_done:
            # It holds nothing, unless the answer to its last claim was lost.
            self._renewer.give_back(child.claimer)
        else:
            how = ending_of(child.process.returncode)
            logger.error("Child process %d %s", child.process.pid, how)
            timed_out = [job for job, _epoch in child.taken_over]
            child.take_over(held)
            self._renewer.child_died(child.claimer, f"its worker process {how}", timed_out)

    def _watch_over(self, place: Place, child: ChildProcess) -> None:
        """Do for a child that does not answer what it can't: hold its timeouts, and end it."""
        late = time.monotonic() - OVERDUE_AFTER
        overdue = [entry for entry in child.entries() if entry.deadline < late]
        if overdue:
            logger.warning(
                "Child process %d does not answer; recording %d timeouts in its stead",
                child.process.pid,
                len(overdue),
            )
            self._renewer.time_out(child.take_over(overdue))
            place.give_up(child)
        if child in place.leaving:
            child.live = len(child.entries())
            place.share()
        if child.has_to_be_told_of():
            logger.warning(
                "Child process %d has not come up within %.0f s", child.process.pid, child.quiet_for
            )
        if (child in place.leaving and not child.live) or child.is_stalled(
            self._options.stall_timeout
        ):
            logger.error(
                "Killing child process %d, silent for %.0f s", child.process.pid, child.quiet_for
            )
            child.kill()
            if self._stops and not child.live:
                # Nothing of it was lost: the end of a child that the worker has stopped.
                child.is_done = True

    def _stop_children(self) -> None:
        if self._give_up_at is None:
            self._give_up_at = time.monotonic() + self._options.shutdown_timeout
            self._renewer.draining = True
            self._renewer.loop.wake()
            logger.info("Stopping: what runs may finish, nothing new is claimed")
            for place in self._places:
                place.stop()
        if self._stops > 1 or time.monotonic() >= self._give_up_at:
            for child in self._alive():
                logger.warning("Killing child process %d; its jobs go back", child.process.pid)
                child.stop()
                self._renewer.give_back(child.claimer)

    def _wait(self) -> None:
        sources: list[Any] = [self._wakeup, *(child.channel for child in self._children())]
        readable, _, _ = select.select(sources, [], [], TICK)
        if self._wakeup in readable:
            with contextlib.suppress(BlockingIOError):
                self._wakeup.recv(4096)
        for place in self._places:
            for child in place.children():
                child.channel.flush()
                if child.channel in readable:
                    self._read(place, child)

    def _read(self, place: Place, child: ChildProcess) -> None:
        for message in child.channel.receive():
            self._hear(place, child, message)
        if child.channel.closed and child.is_alive:
            # Its end of the pair is closed, so it is about to end.
            try:
                child.process.wait(1.0)
            except subprocess.TimeoutExpired:
                child.kill()

    def _let_shun(self, rejecting: ChildProcess, **what: Any) -> None:
        """Let the other children leave alone what one has rejected: the worker is one."""
        for other in self._children():
            if other is not rejecting:
                other.channel.send("shun", **what)

    def _hear(self, place: Place, child: ChildProcess, message: dict[str, Any]) -> None:
        kind = message["kind"]
        if kind == "ready":
            self._welcome(place, child)
        elif kind == "live":
            child.live = message["live"]
            place.share()
        elif kind == "replace":
            place.replace(child, message["why"])
        elif kind == "imported" and self._watcher is not None:
            self._watcher.add(message["files"])
        elif kind == "big":
            self._warn_of_size(message["mib"])
        elif kind == "done":
            child.is_done = True
        elif kind == "rejected":
            self._let_shun(child, job=message["job"], seconds=message["seconds"])
        elif kind == "idle":
            child.idle = (message["since"], message["looked"])
            self._stop_if_idle()

    def _welcome(self, place: Place, child: ChildProcess) -> None:
        """Tell a child that has come up what it has to know before it gets slots.

        A batch is not over before it has told of what was recorded here.
        """
        child.channel.send("apart", jobs=[str(job) for job in self._renewer.suspects()])
        for told in self._renewer.untold():
            child.channel.send("announce", **told)
        place.ready(child)

    def _stop_if_idle(self) -> None:
        """End a batch if there was a moment when nothing ran and nothing was due.

        No child ran anything then, each has looked in vain at it or later, and nothing has gone
        back to be claimed since, of a child that died or does not answer, that one may not have
        seen.
        """
        idle = [place.idle for place in self._places]
        spans = [span for span in idle if span is not None]
        if len(spans) < len(idle):
            return
        if not self._renewer.is_settled(min(looked for _since, looked in spans)):
            self._renewer.loop.wake()
            return
        moment = max(self._buried_at, self._renewer.recorded_at, *(span[0] for span in spans))
        stale = [place for place, span in zip(self._places, spans, strict=True) if span[1] < moment]
        for place in stale:
            place.look()
        if not stale:
            self._stops = max(self._stops, 1)

    def _warn_of_size(self, mib: float) -> None:
        """Say once that the bound leaves no room to work in; the successors are no smaller."""
        if not self._has_warned_of_size:
            self._has_warned_of_size = True
            logger.warning(
                "A child process uses %.0f MiB before its first job, more than --max-rss allows"
                " (%g MiB): each will be replaced as soon as it has taken a job",
                mib,
                self._options.max_rss,
            )

    def _end(self) -> None:
        for child in self._alive():
            child.kill()
            self._renewer.give_back(child.claimer)
        self._listener.loop.stop()
        self._renewer.finish(timeout=5.0)
        self._listener.loop.join(2.0)
        self._listener.close()
