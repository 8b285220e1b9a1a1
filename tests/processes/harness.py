"""Start real workers, look at them, and do to them what operating systems do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

from django.db import connection

from django_durable.choices import FINISHED
from django_durable.models import Job, Queue, Worker

CHECKOUT = Path(__file__).resolve().parent.parent.parent
# Only a broken worker takes so long; the machine may be busy with other tests.
PATIENCE = 30.0
T = TypeVar("T")


def wait_for(what: str, look: Callable[[], T], patience: float = PATIENCE) -> T:
    """Look until there is something to see, and return it."""
    end = time.monotonic() + patience
    while not (seen := look()):
        assert time.monotonic() < end, f"waited {patience:g} s in vain for {what}"
        threading.Event().wait(0.01)
    return seen


def database_url(name: str | None = None, **changed: Any) -> str:
    """Return the address of the test database, or of one that differs from it."""
    parts = urlsplit(os.environ["DATABASE_URL"])
    user = f"{parts.username}:{changed.get('password', parts.password or '')}"
    host = parts.netloc.rpartition("@")[2]
    path = f"/{name or connection.settings_dict['NAME']}"
    query = changed.get("query", parts.query)
    return urlunsplit((parts.scheme, f"{user}@{changed.get('host', host)}", path, query, ""))


def status_of(job: Job) -> str:
    """Return the status that the job has now."""
    return Job.all_objects.values_list("status", flat=True).get(pk=job.pk)


def fresh(job: Job) -> Job:
    """Return the job as it is now."""
    return Job.all_objects.get(pk=job.pk)


def wait_for_status(job: Job, status: str, patience: float = PATIENCE) -> Job:
    """Wait until the job has the status, and return it."""
    wait_for(f"{job} to be {status}", lambda: status_of(job) == status, patience)
    return fresh(job)


def wait_for_end(*jobs: Job, patience: float = PATIENCE) -> list[Job]:
    """Wait until all jobs have ended, and return them."""
    ids = [job.pk for job in jobs]
    living = Job.all_objects.filter(pk__in=ids).exclude(status__in=FINISHED)
    wait_for("the jobs to end", lambda: not living.exists(), patience)
    return [fresh(job) for job in jobs]


def is_alive(pid: int) -> bool:
    """Tell whether the process runs; one that nobody has waited for yet does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def tagged(tag: str) -> list[int]:
    """Return all processes that were started with this tag in their environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if tag.encode() in (folder / "environ").read_bytes() and is_alive(int(folder.name)):
                found.append(int(folder.name))
    return found


def make_known(*queues: str) -> None:
    """Let workers start that serve these queues before anything else names them."""
    Queue.objects.bulk_create([Queue(name=name) for name in queues], ignore_conflicts=True)


class WorkerProcess:
    """Be a `manage.py worker` with its children, from its start to the end of the last of them.

    `through` is what a shell does to start it, such as redirecting it.
    """

    def __init__(
        self, folder: Path, *args: str, through: str = 'exec "$@"', **environment: str
    ) -> None:
        self.tag = f"worker-{uuid4()}"
        self.log_path = folder / f"{self.tag}.log"
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(
                ["/bin/sh", "-c", through, "sh", sys.executable, "manage.py", "worker", *args],
                cwd=CHECKOUT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={
                    **os.environ,
                    "DJANGO_SETTINGS_MODULE": "tests.settings",
                    "DATABASE_URL": database_url(),
                    "TEST_TAG": self.tag,
                    **environment,
                },
            )
        self.pid = self.process.pid

    @property
    def log(self) -> str:
        """Return what it and its children have written."""
        return self.log_path.read_text(errors="replace")

    def wait_for_line(self, text: str, patience: float = PATIENCE) -> str:
        """Wait for a line of the log that holds the text, and return it."""

        def look() -> str:
            ended = self.process.poll() is not None
            found = next((line for line in self.log.split("\n")[:-1] if text in line), "")
            assert found or not ended, f"the worker ended without saying {text!r}"
            return found

        with self.explained():
            return wait_for(f"the log to say {text!r}", look, patience)

    def wait_until_ready(self) -> WorkerProcess:
        """Wait until the command has greeted."""
        self.wait_for_line("django_durable ")
        return self

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Add the log to what goes wrong."""
        try:
            yield
        except AssertionError as error:
            raise AssertionError(f"{error}\nThe worker's log:\n{self.log}") from None

    def family(self) -> list[int]:
        """Return the processes of this worker that live, whoever is their parent."""
        return tagged(self.tag)

    def children(self) -> list[int]:
        """Return its child processes that live."""
        listed = Path(f"/proc/{self.pid}/task").glob("*/children")
        pids = [int(pid) for path in listed for pid in path.read_text().split()]
        return [pid for pid in pids if is_alive(pid)]

    def child(self) -> int:
        """Return its one child, once it is there."""
        with self.explained():
            (pid,) = wait_for("a child", self.children)
        return pid

    def row(self) -> Worker:
        """Return its row, once it is there."""
        rows = Worker.objects.filter(pid=self.pid)
        with self.explained():
            return wait_for("the worker's row", rows.first)

    def send(self, number: int) -> None:
        """Send a signal to the command itself."""
        os.kill(self.pid, number)

    def send_all(self, number: int) -> None:
        """Send a signal to the command and all its children."""
        for pid in self.family():
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def wait(self, patience: float = PATIENCE) -> int:
        """Wait for the end of the command, and return its exit code."""
        try:
            return self.process.wait(patience)
        except subprocess.TimeoutExpired:
            with self.explained():
                raise AssertionError(f"the worker did not end within {patience:g} s") from None

    def stop(self) -> None:
        """Let it drain, and see that it ends as it should."""
        self.send(signal.SIGTERM)
        code = self.wait()
        with self.explained():
            assert code == 0, f"exit code {code}"
            assert not self.family(), "it left processes behind"

    def destroy(self) -> None:
        """End everything that is left of it."""
        for pid in self.family():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        # Others are init's children by now, who waits for them.
        wait_for("the end of its processes", lambda: not self.family())


def sessions() -> int:
    """Return how many sessions others have on this database."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE datname = current_database() AND backend_type = 'client backend'"
            " AND pid <> pg_backend_pid()"
        )
        return int(cursor.fetchone()[0])
