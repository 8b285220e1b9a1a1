"""The supervisor's side of a child, and of the place that children take one after another."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from uuid import uuid4

from django_durable.errorlog import get_logger
from django_durable.store import Right
from django_durable.worker.channel import Channel
from django_durable.worker.claimtable import ClaimTable, Entry
from django_durable.worker.options import WorkerOptions
from django_durable.worker.processtree import kill_tree

logger = get_logger("django_durable.worker")

# A child that dies again and again right after its start is started less and less often. One that
# got as far as to run jobs most likely died of one of them: the others must not wait for long.
FIRST_RESTART = 0.1
LONGEST_RESTART = 30.0
LONGEST_RESTART_WHEN_READY = 1.0
HEALTHY_AFTER = 10.0
# The child's main thread runs several times a second, unless C code holds the interpreter. Before
# that it imports the project's code.
QUIET_AFTER = 1.5
UP_WITHIN = 60.0
# None of whose jobs can hold the interpreter, since it has none.
STALLED_WHEN_IDLE = 30.0
# How many claims a child of few slots may have. Ten short jobs have ended before the ends of the
# ten before are on the disk; with room for no more, each claim would wait for that.
FEW_CLAIMS = 64

_BOOT = (
    "import json, os, sys;"
    "sys.path[:] = json.loads(os.environ.pop('DURABLE_SYS_PATH'));"
    "from django_durable.worker.boot import main;"
    "main()"
)

# Of glibc: as many heaps as a process would have for its threads grow one after the other, each to
# what some batch needed. Python's threads take turns, so two do as well.
ENVIRONMENT = {"MALLOC_ARENA_MAX": "2"}


class ChildProcess:
    """Start a child and know what it said."""

    def __init__(self, options: WorkerOptions) -> None:
        self.claimer = uuid4()
        self.started = time.monotonic()
        self.is_ready = False
        self.is_done = False
        # When it was last said that it does not come up.
        self.told_at = self.started
        # Of a batch: since when nothing runs in it, and when it last looked in vain.
        self.idle: tuple[float, float] | None = None
        # How many runs it may have, and how many it has: until it says, as many as it may.
        self.slots = 0
        self.live = 0
        # Claims whose timeout the supervisor has recorded, since the child did not.
        self.taken_over: set[Right] = set()
        # A run that has ended leaves its slot before its end is recorded.
        size = max(2 * options.concurrency, FEW_CLAIMS)
        with ExitStack() as undo:
            self.table = ClaimTable.create(size)
            undo.callback(self.table.close)
            ours, theirs = socket.socketpair()
            self.channel = Channel(ours)
            undo.callback(self.channel.close)
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
                        str(size),
                        str(self.claimer),
                    ],
                    pass_fds=(theirs.fileno(), self.table.fd),
                    stdin=subprocess.DEVNULL,
                    env={**ENVIRONMENT, **os.environ, "DURABLE_SYS_PATH": json.dumps(sys.path)},
                    # A group of its own: a job that signals its group must not stop the worker.
                    process_group=0,
                )
            undo.pop_all()

    @property
    def is_alive(self) -> bool:
        """Tell whether the process still runs."""
        return self.process.poll() is None

    def rights(self) -> list[Right]:
        """Return the claims whose leases are to be renewed."""
        return [entry.right for entry in self.entries()]

    def entries(self) -> list[Entry]:
        """Return the claims that the child holds."""
        return [entry for entry in self.table.entries() if entry.right not in self.taken_over]

    def take_over(self, claims: list[Entry]) -> list[Right]:
        """Keep claims from the child: end the processes of their runs, and list them no more."""
        for entry in claims:
            pid, started = entry.process
            if pid:
                kill_tree(pid, started)
        rights = [entry.right for entry in claims]
        self.taken_over.update(rights)
        return rights

    @property
    def quiet_for(self) -> float:
        """Return for how many seconds its main thread has not run, or it has not come up."""
        return time.monotonic() - (self.table.last_beat if self.is_ready else self.started)

    @property
    def is_quiet(self) -> bool:
        """Tell whether the child is coming up, stopped, or stuck in C code."""
        return self.quiet_for > QUIET_AFTER

    def is_stalled(self, timeout: float) -> bool:
        """Tell whether it has been quiet for too long: for so many seconds, if it has jobs."""
        if self.is_ready and not self.entries():
            timeout = min(timeout, STALLED_WHEN_IDLE)
        return self.quiet_for > timeout

    def has_to_be_told_of(self) -> bool:
        """Tell, every minute, that it has not come up yet."""
        if self.is_ready or time.monotonic() - self.told_at < UP_WITHIN:
            return False
        self.told_at = time.monotonic()
        return True

    def drain(self) -> None:
        """Let it finish what runs, and claim nothing more."""
        self.channel.send("drain")

    def kill(self) -> None:
        """End it at once, and with it the processes of isolated runs.

        What other jobs have started goes on, as it does when the child dies by itself.
        """
        self.process.kill()
        self.process.wait()
        self.take_over(self.entries())

    def stop(self) -> None:
        """Kill it because the worker stops: what it holds is given back, as if it had drained."""
        self.kill()
        self.is_done = True

    def close(self) -> None:
        """Let go of what the child left."""
        self.channel.close()
        self.table.close()


def _interpreter_flags() -> list[str]:
    flags = ["-X", "dev"] if sys.flags.dev_mode else []
    return flags + [f"-W{option}" for option in sys.warnoptions]


class Place:
    """Keep a place of `concurrency` slots staffed: one child that claims, others that leave.

    A child that is to go is replaced first: its successor starts while it goes on, and takes the
    slots over as the old one's runs end. All together never have more runs than the place has
    slots.
    """

    def __init__(self, options: WorkerOptions) -> None:
        self._options = options
        self.current: ChildProcess | None = None
        self.successor: ChildProcess | None = None
        self.leaving: list[ChildProcess] = []
        # The child to be replaced, and why: a wish that only a successor fulfils that is ready.
        self._wanted: tuple[ChildProcess, str] | None = None
        self._restart_at = 0.0
        self._restart_pause = FIRST_RESTART

    def children(self) -> list[ChildProcess]:
        """Return all children of the place."""
        heads = [child for child in (self.current, self.successor) if child is not None]
        return heads + self.leaving

    def staff(self) -> None:
        """Start the child that is missing, or wanted, if the last did not die just now."""
        if self.successor is not None or not self._may_start():
            return
        if self.current is None:
            self.current = self._start()
        elif self._wanted is not None and self._wanted[0] is self.current:
            logger.info("Replacing child process %d: %s", self.current.process.pid, self._wanted[1])
            self.successor = self._start()

    def replace(self, child: ChildProcess, why: str) -> None:
        """Start a successor for the child that claims, as soon as one may start.

        And another one if that dies before it is ready: nobody asks again.
        """
        if child is self.current:
            self._wanted = (child, why)
            self.staff()

    @property
    def idle(self) -> tuple[float, float] | None:
        """Return since when nothing runs here, and when it last looked in vain; None if not so."""
        if self.current is None or self.leaving:
            return None
        return self.current.idle

    def look(self) -> None:
        """Let the child that claims look for work now."""
        if self.current is not None:
            self.current.channel.send("work", droppable=True)

    def reload(self) -> None:
        """Start a child at once, since the code has changed: what failed before was other code.

        One that is still coming up may have read the old code; it holds nothing, and goes.
        """
        self._restart_at, self._restart_pause = 0.0, FIRST_RESTART
        if self.successor is not None:
            self._dismiss(self.successor)
            self.successor = None
        if self.current is not None and not self.current.is_ready:
            self._dismiss(self.current)
            self.current = None
        if self.current is not None:
            self._wanted = (self.current, "the code has changed")
        self.staff()

    def _start(self) -> ChildProcess | None:
        """Start a child; None where the system gives no process or descriptor just now.

        The other children have jobs to finish.
        """
        try:
            return ChildProcess(self._options)
        except OSError as error:
            logger.warning("No child process can be started now: %s", error)
            self._put_off_starts(LONGEST_RESTART)
            return None

    def _may_start(self) -> bool:
        return time.monotonic() >= self._restart_at

    def give_up(self, child: ChildProcess) -> None:
        """Claim no more with a child that does not answer; its place goes to another."""
        if child is self.current:
            self._leave(child)
            self.current = None
            self.staff()

    def stop(self) -> None:
        """Let all children leave, and start none in their stead.

        One that has not come up has no slots yet, so it holds nothing and is not waited for.
        """
        for child in (self.current, self.successor):
            if child is not None:
                self._dismiss(child)
        self.current = self.successor = None

    def _dismiss(self, child: ChildProcess) -> None:
        """Let a child go: at once, if it has not come up."""
        if not child.is_ready:
            child.stop()
        self._leave(child)

    def _leave(self, child: ChildProcess) -> None:
        child.live = child.slots
        child.drain()
        self.leaving.append(child)

    def ready(self, child: ChildProcess) -> None:
        """Let a child that has started take its place."""
        child.is_ready = True
        # A start that fails now fails for another reason than those before.
        self._restart_pause = min(self._restart_pause, LONGEST_RESTART_WHEN_READY)
        if child is self.successor:
            if self.current is not None:
                self._leave(self.current)
            self.current, self.successor, self._wanted = child, None, None
        self.share()

    def share(self) -> None:
        """Give the child that claims all slots that the leaving ones have freed."""
        free = max(self._options.concurrency - sum(child.live for child in self.leaving), 0)
        child = self.current
        if child is not None and child.is_ready and child.slots != free:
            child.slots = free
            child.channel.send("slots", slots=free)

    def bury(self, child: ChildProcess, *, failed: bool) -> None:
        """Let go of a child that has ended."""
        if child is self.current:
            self.current = None
        elif child is self.successor:
            self.successor = None
        else:
            self.leaving.remove(child)
        child.close()
        if failed:
            if time.monotonic() - child.started > HEALTHY_AFTER:
                self._restart_pause = FIRST_RESTART
            self._put_off_starts(LONGEST_RESTART_WHEN_READY if child.is_ready else LONGEST_RESTART)
        self.share()

    def _put_off_starts(self, longest: float) -> None:
        pause = min(self._restart_pause, longest)
        self._restart_at = time.monotonic() + pause
        self._restart_pause = min(pause * 2, longest)
