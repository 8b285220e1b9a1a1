"""Processes that the demonstration starts, finds again with all their children, and ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Self

from testproject.demo import DemoError

CHECKOUT = Path(__file__).resolve().parent.parent.parent
STOP_SECONDS = 15.0
LOG_LINES = 15

# Ends the process when its standard input closes, which happens however the demonstration ends.
GUARD = 'read _; kill -s TERM "$1"'


class Program:
    """Run `manage.py` with arguments, in a session of its own.

    So a Ctrl-C at the terminal is for the demonstration alone, and whatever the program starts can
    be found by the session, also when the program itself has been killed. As a context manager it
    stops the program and all that is left of its session. If the demonstration is killed, a guard
    stops the program in its stead.
    """

    def __init__(self, title: str, arguments: list[str], log: Path) -> None:
        self.title = title
        self.log = log
        environment = {
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "testproject.settings",
            "PYTHONUNBUFFERED": "1",
            "CONN_MAX_AGE": "60",
        }
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "manage.py", *arguments],
                cwd=CHECKOUT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._guard = subprocess.Popen(
            ["/bin/sh", "-c", GUARD, "guard", str(self.process.pid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def check(self) -> None:
        """Raise `DemoError` with the end of the log if the program has ended."""
        code = self.process.poll()
        if code is not None:
            raise DemoError(f"The {self.title} ended with code {code}.{self.log_tail()}")

    def log_tail(self) -> str:
        """Return the last lines of the log, for a message."""
        lines = self.log.read_text(errors="replace").splitlines()[-LOG_LINES:]
        return "\n".join([f" The end of {self.log}:", *lines])

    def pids(self) -> list[int]:
        """Return the processes of the session: the program first, then what it started."""
        first = self.process.pid
        return sorted(session_members(first), key=lambda pid: (pid != first, pid))

    def kill(self) -> list[int]:
        """Kill the program and what it started with SIGKILL; return their process ids."""
        pids = self.pids()
        for pid in pids:
            _kill(pid)
        self.process.wait()
        return pids

    def stop(self) -> None:
        """Ask the program to stop, wait for it, and kill what is left."""
        if self.process.poll() is None:
            self.process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(STOP_SECONDS)
        self.kill()
        self._guard.kill()
        self._guard.communicate()


def session_members(session: int) -> set[int]:
    """Return the processes that belong to a session, its leader included."""
    return {pid for pid in _all_pids() if _session_of(pid) == session}


def _all_pids() -> list[int]:
    proc = Path("/proc")
    if (proc / "self").exists():
        return [int(entry.name) for entry in proc.iterdir() if entry.name.isdigit()]
    shown = subprocess.run(["/bin/ps", "-A", "-o", "pid="], capture_output=True, text=True)
    return [int(line) for line in shown.stdout.split()]


def _session_of(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except (ProcessLookupError, PermissionError):
        return None


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
