"""Enqueueing while workers run: what commits, and one key under a race of threads and processes."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import connection, connections, transaction

from django_durable.models import Job
from tests.processes.harness import CHECKOUT, database_url, fresh, wait_for, wait_for_end
from tests.workerapp import jobs

SOON = 20


def shared(job_type, **options):
    return job_type.using(queue_name="shared", **options)


def from_another_connection(action):
    """Run it in a thread, which has a connection of its own."""

    def run():
        try:
            return action()
        finally:
            connections.close_all()

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(run).result(SOON)


def worker_has_looked():
    """Return when the worker has run a job that was enqueued after this call."""
    from_another_connection(lambda: shared(jobs.noop).enqueue().result(SOON))


def test_no_worker_sees_a_job_before_its_commit(worker, notes, folder):
    with transaction.atomic():
        job = shared(jobs.work).enqueue(folder, "committed")
        worker_has_looked()
        assert not notes.read("start")

    assert job.result(SOON) == "committed"


def test_a_job_that_is_rolled_back_never_was(worker, notes, folder):
    with transaction.atomic():
        job = shared(jobs.work).enqueue(folder, "rolled back")
        transaction.set_rollback(True)

    worker_has_looked()

    assert not Job.all_objects.filter(pk=job.pk).exists()
    assert not notes.read("start")


def test_savepoints_count(worker, notes, folder):
    with transaction.atomic():
        kept = shared(jobs.work).enqueue(folder, "kept")
        with transaction.atomic():
            shared(jobs.work).enqueue(folder, "inner")
            transaction.set_rollback(True)
        also = shared(jobs.work).enqueue(folder, "also kept")

    wait_for_end(kept, also)
    worker_has_looked()

    assert {note["label"] for note in notes.read("start")} == {"kept", "also kept"}


def test_threads_that_race_for_one_key_make_one_job(worker, notes, folder):
    made, barrier = [], threading.Barrier(12)

    def race():
        try:
            barrier.wait(SOON)
            for _ in range(50):
                call = shared(jobs.work, idempotency_key="one for all threads")
                made.append(call.enqueue(folder, "once"))
        finally:
            connections.close_all()

    with ThreadPoolExecutor(12) as pool:
        for racer in [pool.submit(race) for _ in range(12)]:
            racer.result(60)

    assert len(made) == 600
    assert len({job.pk for job in made}) == 1
    assert sum(job.created for job in made) == 1
    made[0].result(SOON)
    assert len(notes.read("start")) == 1


RACE = """
import sys
import django
django.setup()
from tests.workerapp import jobs
from tests.workerapp.notes import Notes
notes = Notes(sys.argv[1])
notes.add("ready")
notes.wait_to_go("race")
call = jobs.work.using(queue_name=sys.argv[2], idempotency_key="one for all processes")
for _ in range(7):
    job = call.enqueue(sys.argv[1], "once")
    notes.add("made", job=job.pk, created=job.created)
"""


def race(notes, queue, processes):
    command = [sys.executable, "-c", RACE, str(notes.folder), queue]
    environment = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "tests.settings",
        "DATABASE_URL": database_url(),
    }
    racers = [
        subprocess.Popen(command, cwd=CHECKOUT, env=environment, stderr=subprocess.PIPE, text=True)
        for _ in range(processes)
    ]
    try:
        wait_for("the racers", lambda: len(notes.read("ready")) == processes, 100)
        notes.let_go("race")
        errors = [racer.communicate(timeout=60)[1] for racer in racers]
    finally:
        for racer in racers:
            racer.kill()
            racer.wait()
    assert errors == [""] * processes
    made = notes.read("made")
    assert len(made) == 7 * processes
    assert len({note["job"] for note in made}) == 1
    assert [note["created"] for note in made].count(True) == 1


def test_processes_that_race_for_one_key_make_one_job(worker, notes, folder):
    race(notes, "shared", 6)

    wait_for("the run", lambda: notes.read("end"))
    assert len(notes.read("start")) == 1


@pytest.mark.stress
def test_fifty_processes_that_race_for_one_key_make_one_job(worker, notes):
    race(notes, "shared", 50)


def test_a_bulk_of_jobs_runs_whole(start, queue):
    start("--concurrency", "50", "-v", "0")
    made = jobs.async_noop.using(queue_name=queue).enqueue_many([((), {})] * 3000)

    wait_for(
        "the end", lambda: Job.objects.filter(status="SUCCESSFUL", queue_name=queue).count() == 3000
    )

    assert len(made) == 3000
    assert fresh(made[0]).attempt == fresh(made[-1]).attempt == 1
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM durable_attempt")
        assert cursor.fetchone()[0] == 0
