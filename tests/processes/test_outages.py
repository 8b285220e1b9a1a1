"""The database goes away and comes back: nothing is lost, and no attempt is charged for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from django.db import connection, connections

from django_durable.models import Job
from tests.processes.harness import CHECKOUT, PATIENCE, wait_for, wait_for_end
from tests.workerapp import jobs

SOON = 20


def terminate_all() -> int:
    """End all sessions but this one, as an administrator may."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        return cursor.fetchone()[0]


def test_sessions_that_are_terminated_cost_nothing(start, notes, folder, queue):
    worker = start("--lease", "6s", "--concurrency", "6")
    held = [jobs.hold.using(queue_name=queue).enqueue(folder, f"held-{n}") for n in range(2)]
    held.append(jobs.async_hold.using(queue_name=queue).enqueue(folder, "held-loop"))
    wait_for("the starts", lambda: len(notes.read("start")) == 3)

    short = []
    for number in range(4):
        short += [
            jobs.work.using(queue_name=queue).enqueue(folder, f"{number}-{n}") for n in range(10)
        ]
        assert terminate_all() > 0
        wait_for_end(*short, patience=10)
    terminate_all()
    notes.let_go()

    for job in wait_for_end(*held, *short, patience=10):
        assert (job.status, job.attempt) == (Job.Status.SUCCESSFUL, 1)
        assert job.attempts.count() == 0
    # What was started was recorded, since those that started are those that ended.
    assert len(notes.read("start")) == len(notes.read("end")) == 43
    assert "Traceback" not in worker.log
    worker.stop()


def test_a_result_is_had_over_terminated_sessions(start, notes, folder, queue, settings):
    start()
    job = jobs.hold.using(queue_name=queue).enqueue(folder)
    wait_for("the start", lambda: notes.read("start"))

    def wait():
        try:
            return Job.objects.get(pk=job.pk).result(SOON)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(wait)
        wait_for("the listener", listens)
        end_listeners()
        notes.let_go()
        assert waiting.result(SOON) == "job"


def listens() -> bool:
    return _sessions("SELECT count(*) FROM pg_stat_activity", "LISTEN durable_ended") > 0


def end_listeners() -> None:
    _sessions(
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity", "LISTEN durable_ended"
    )


def _sessions(select: str, query: str) -> int:
    with connection.cursor() as cursor:
        cursor.execute(f"{select} WHERE datname = current_database() AND query = %s", [query])
        return cursor.fetchone()[0]


class Elsewhere:
    """Use a server of the test's own, which this process is not connected to."""

    def __init__(self, server) -> None:
        self.server = server
        self.url = server.url
        self.manage("migrate", "--verbosity", "0")

    def manage(self, *args: str) -> str:
        done = subprocess.run(
            [sys.executable, "manage.py", *args],
            check=False,
            cwd=CHECKOUT,
            capture_output=True,
            text=True,
            timeout=60,
            env={
                **os.environ,
                "DATABASE_URL": self.url,
                "DJANGO_SETTINGS_MODULE": "tests.settings",
            },
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def enqueue(self, job_type, *args: str) -> str:
        answer = self.manage(
            "durable", "enqueue", job_type.name, "--args", json.dumps(args), "--json"
        )
        return json.loads(answer)["id"]

    def query(self, text: str) -> list[tuple]:
        with psycopg.connect(self.url, autocommit=True) as session:
            return session.execute(text).fetchall()

    def flush(self) -> None:
        with psycopg.connect(self.url, autocommit=True) as session:
            session.execute("CHECKPOINT")

    def statuses(self) -> dict[str, tuple[str, int]]:
        rows = self.query("SELECT id::text, status, attempt FROM durable_job")
        return {job: (status, attempt) for job, status, attempt in rows}


def restart_under_work(start, server, notes, folder, *, down_for: float, lease: str):
    """Let jobs end while the server is down, and see that they are recorded when it is back."""
    there = Elsewhere(server)
    worker = start("--queue-name=*", "--lease", lease, DATABASE_URL=there.url)
    during = [
        there.enqueue(jobs.hold, folder, "during"),
        there.enqueue(jobs.async_hold, folder, "during"),
    ]
    after = there.enqueue(jobs.hold, folder, "after")
    wait_for("the starts", lambda: len(notes.read("start")) == 3)
    lines = len(worker.log.splitlines())

    # Claims do not wait for the disk: a crash would undo what is younger than this.
    there.flush()
    server.stop("immediate")
    notes.let_go("during")
    wait_for("the ends", lambda: len(notes.read("end")) == 2)
    worker.wait_for_line("waits for the database")
    ended_at = max(note["at"] for note in notes.read("end"))
    wait_for("the outage to last", lambda: notes.now() - ended_at > down_for, down_for + PATIENCE)
    server.start()
    back_at = notes.now()

    # Finished work is recorded, the rest goes on; no attempt is charged.
    wait_for(
        "the records", lambda: all(there.statuses()[job] == ("SUCCESSFUL", 1) for job in during), 10
    )
    assert notes.now() - back_at < 8
    assert there.statuses()[after] == ("RUNNING", 1)
    assert there.query("SELECT count(*) FROM durable_attempt") == [(0,)]
    # New work is found.
    notes.let_go()
    new = there.enqueue(jobs.echo, "new")
    wait_for(
        "all to end",
        lambda: all(there.statuses()[job] == ("SUCCESSFUL", 1) for job in (after, new)),
    )
    assert there.query("SELECT count(*) FROM durable_attempt") == [(0,)]
    with worker.explained():
        assert len(worker.log.splitlines()) - lines < 25
        assert "Traceback" not in worker.log
    worker.stop()


def test_a_server_that_crashes_and_comes_back_loses_nothing(start, private_server, notes, folder):
    # Longer than the lease.
    restart_under_work(start, private_server, notes, folder, down_for=4, lease="2s")


@pytest.mark.stress
def test_a_server_that_is_away_for_long_loses_nothing(start, private_server, notes, folder):
    restart_under_work(start, private_server, notes, folder, down_for=45, lease="10s")


def test_a_worker_whose_database_is_away_can_be_stopped(start, private_server, notes, folder):
    there = Elsewhere(private_server)
    worker = start("--queue-name=*", "--shutdown-timeout", "2s", DATABASE_URL=there.url)
    there.enqueue(jobs.hold, folder)
    wait_for("the start", lambda: notes.read("start"))
    private_server.stop("immediate")
    worker.wait_for_line("waits for the database")

    worker.stop()
