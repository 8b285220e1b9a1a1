"""A real `manage.py worker` in processes of its own, and its way to full strength."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, Self
from uuid import UUID

from benchmarks.databases import Connection, value
from django_durable.notifications import READY

ROOT = Path(__file__).resolve().parent.parent
QUEUE = "bench"
WARM_UP = "warm-up"
START_SECONDS = 60.0
# What a warm-up job takes: long enough for all slots to be taken before the first is free again.
HOLD_SECONDS = 0.3

WARM_UP_ENDED = """
SELECT NOT EXISTS (SELECT FROM durable_job WHERE id BETWEEN %s AND %s AND finished_at IS NULL)
"""
# The last one started before the first one ended.
WARM_UP_WAS_FULL = """
WITH gone AS (
    DELETE FROM durable_job WHERE id BETWEEN %s AND %s RETURNING started_at, finished_at
)
SELECT max(started_at) < min(finished_at) FROM gone
"""


class WorkerFailed(Exception):  # noqa: N818 - it says what happened
    """The worker, or the wait for it, did not come to what it should; the text says why."""


def environment(url: str) -> dict[str, str]:
    """Return the environment of a process of the benchmarks' project."""
    return {
        **os.environ,
        "DATABASE_URL": url,
        "DJANGO_SETTINGS_MODULE": "benchmarks.app.settings",
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
    }


def knows(flag: str) -> bool:
    """Tell whether the worker command has a flag."""
    shown = subprocess.run(
        [sys.executable, "-m", "django", "worker", "--help"],
        env=environment("postgresql://nobody@127.0.0.1:1/none"),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return flag in shown.stdout


def wait_until(what: Callable[[], bool], seconds: float, why: str, pause: float = 0.05) -> None:
    """Ask again and again, for the benchmarks watch processes that don't know of them."""
    end = time.monotonic() + seconds
    while not what():
        if time.monotonic() > end:
            raise WorkerFailed(f"gave up after {seconds:g} s: {why}")
        time.sleep(pause)


class Worker:
    """Run one worker command on a database, until the end of a `with` block."""

    def __init__(self, url: str, concurrency: int, flags: tuple[str, ...] = ()) -> None:
        command = [sys.executable, "-m", "django", "worker", "--verbosity", "0"]
        command += ["--concurrency", str(concurrency), *flags]
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by __exit__
        self._process = subprocess.Popen(
            command,
            env=environment(url),
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    @property
    def pid(self) -> int:
        """Return the process id of the supervisor."""
        return self._process.pid

    def warm_up(self, db: Connection, hold: Any, slots: int) -> None:
        """Return once all slots have been seen at work at one time.

        `hold` is the job type that takes a slot, on the loop or in a thread. When all are taken,
        all children are up, and the threads and connections that a worker makes as it needs them.
        """
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end:
            made = hold.using(queue_name=WARM_UP).enqueue_many([((HOLD_SECONDS,), {})] * slots)
            if self._was_full(db, [made[0].pk, made[-1].pk]):
                return
        raise WorkerFailed(f"the worker's {slots} slots were never all at work")

    def _was_full(self, db: Connection, ids: list[UUID]) -> bool:
        def have_ended() -> bool:
            self.check()
            return bool(value(db, WARM_UP_ENDED, ids))

        wait_until(have_ended, START_SECONDS, "the warm-up has not ended")
        return bool(value(db, WARM_UP_WAS_FULL, ids))

    def check(self) -> None:
        """Raise `WorkerFailed` with the worker's last words if it has ended."""
        if self._process.poll() is not None:
            self._log.seek(0)
            said = self._log.read().decode(errors="replace")[-2000:]
            raise WorkerFailed(f"the worker ended with {self._process.returncode}:\n{said}")


def pause_queue(db: Connection, name: str = QUEUE) -> None:
    """Let no job of the queue start."""
    db.execute(
        "INSERT INTO durable_queue (name, paused) VALUES (%s, TRUE)"
        " ON CONFLICT (name) DO UPDATE SET paused = TRUE",
        [name],
    )


def resume_queue(db: Connection, name: str = QUEUE) -> None:
    """Let the jobs of the queue start, and say so to the workers."""
    db.execute(
        "INSERT INTO durable_queue (name, paused) VALUES (%s, FALSE)"
        " ON CONFLICT (name) DO UPDATE SET paused = FALSE",
        [name],
    )
    db.execute("SELECT pg_notify(%s, %s)", [READY, name])
