"""What the examples share: workers that they start, kill and stop."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
PATIENCE = 60


class Worker:
    """Be a `manage.py worker` with its children."""

    def __init__(self, arguments: tuple[str, ...], environment: dict[str, str]) -> None:
        queue = () if "-q" in arguments else ("-q", os.environ["EXAMPLES_QUEUE"])
        self.process = subprocess.Popen(
            [sys.executable, "manage.py", "worker", *queue, *arguments],
            cwd=CHECKOUT,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **environment},
            start_new_session=True,
        )

    def kill(self) -> None:
        """End it as a power cut would, with all its children."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        """Let it finish what runs, and end."""
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait(PATIENCE)


@contextmanager
def worker(*arguments: str, **environment: str) -> Iterator[Worker]:
    """Start a worker, of the examples' queue unless `-q` names another; it stops at the end."""
    made = Worker(("--verbosity", "0", *arguments), environment)
    try:
        yield made
    finally:
        made.stop()


def wait_until(is_true: Callable[[], bool]) -> None:
    """Look again and again until it is true."""
    pause = threading.Event()
    for _ in range(PATIENCE * 20):
        if is_true():
            return
        pause.wait(0.05)
    raise TimeoutError("what was waited for has not come")


def say(text: str) -> None:
    """Print a line at once, whoever else prints."""
    print(text, flush=True)
