"""Processes and what descends from them: who they are, and how to end them all.

Linux tells of parents in `/proc`. Elsewhere a process is known by its id alone, and what it has
started by its group.
"""

from __future__ import annotations

import ctypes
import os
import signal
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

PROC = Path("/proc")
PR_SET_CHILD_SUBREAPER = 36
# Their places in `/proc/<pid>/stat` after the name, which may hold spaces and parentheses.
STATE, PARENT, STARTED = 0, 1, 19
DEAD = "ZX"


def _stat(pid: int | str) -> list[str]:
    try:
        return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def ending_of(code: int | None) -> str:
    """Say how a process ended, by its exit code."""
    return f"was killed by signal {-code}" if code and code < 0 else f"ended with code {code}"


def start_of(pid: int) -> int:
    """Return when a process started, which tells it from a later one with its id; 0: unknown."""
    stat = _stat(pid)
    return int(stat[STARTED]) if stat else 0


def is_running(pid: int, started: int) -> bool:
    """Tell whether the process that started then still runs."""
    stat = _stat(pid)
    if stat:
        return stat[STATE] not in DEAD and started in (0, int(stat[STARTED]))
    return not _has_proc() and _signal(pid, 0)


def keep_orphans() -> None:
    """Become the parent of what this process's children leave behind, which keeps it findable."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def kill_tree(pid: int, started: int = 0) -> None:
    """Kill a process, its group, and what descends from it; nothing, if its id is another's."""
    if started and start_of(pid) != started:
        return
    if pid != os.getpid():
        _signal(pid, signal.SIGSTOP)
    found: set[int] = set()
    # They are stopped one after the other, so that they start nothing more: what they have started
    # meanwhile is found the next time.
    while new := _descendants(pid) - found:
        for each in new:
            _signal(each, signal.SIGSTOP)
        found |= new
    for each in found:
        _signal(each, signal.SIGKILL)
    # It leads a group of its own as soon as it runs.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    _signal(pid, signal.SIGKILL)


def _descendants(pid: int) -> set[int]:
    children = defaultdict(set)
    for folder in PROC.glob("[0-9]*"):
        stat = _stat(folder.name)
        if stat and stat[STATE] not in DEAD:
            children[int(stat[PARENT])].add(int(folder.name))
    found: set[int] = set()
    parents = [pid]
    while parents:
        new = children[parents.pop()] - found
        found |= new
        parents += new
    return found


def _signal(pid: int, number: int) -> bool:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    except PermissionError:
        # It has become another user's.
        pass
    return True


def _has_proc() -> bool:
    return (PROC / "self" / "stat").exists()
