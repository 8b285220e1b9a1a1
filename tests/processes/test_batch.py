"""The end of a batch: nothing is due then and nothing runs, whatever died or was told meanwhile."""

from __future__ import annotations

import os
import signal

import psycopg
import pytest

from django_durable.models import Job
from tests.processes.harness import database_url, fresh, status_of, wait_for
from tests.workerapp import jobs


@pytest.mark.parametrize("processes", ["1", "2", "3"])
def test_what_a_dead_child_held_is_done_before(start, notes, folder, queue, processes):
    held = jobs.hold.using(queue_name=queue).enqueue(folder)
    worker = start("--batch", "--processes", processes)
    (note,) = wait_for("the start", lambda: notes.read("start"))
    wait_for("the other children", lambda: len(worker.children()) == int(processes))

    os.kill(note["pid"], signal.SIGKILL)
    wait_for("the second start", lambda: notes.read("start", attempt=2))
    notes.let_go()

    assert worker.wait() == 0
    assert (status_of(held), fresh(held).attempt) == ("SUCCESSFUL", 2)


def test_a_job_that_kills_its_child_each_time_is_dead_at_the_end(start, notes, folder, queue):
    poison = jobs.exit_late.using(queue_name=queue).enqueue(folder)

    assert start("--batch", "--processes", "2").wait() == 0

    assert fresh(poison).dead_letter.reason == "lost"
    # By whichever child is left.
    assert [note["job"] for note in notes.read("hook")] == [str(poison.pk)]


@pytest.mark.parametrize("processes", ["1", "2"])
def test_what_a_hook_enqueues_is_done_before(start, notes, folder, queue, processes):
    jobs.die_with_successor.using(queue_name=queue).enqueue()

    assert start("--batch", "--processes", processes).wait() == 0

    assert Job.objects.get(queue_name=queue, name=jobs.noop.name).status == "SUCCESSFUL"


def test_a_due_job_that_somebody_has_locked_is_waited_for(start, queue):
    job = jobs.noop.using(queue_name=queue).enqueue()
    with psycopg.connect(database_url()) as somebody:
        somebody.execute("SELECT FROM durable_job WHERE id = %s FOR UPDATE", [job.pk])
        worker = start("--batch")
        worker.wait_until_ready()
        with pytest.raises(AssertionError, match="in vain"):
            wait_for("the end", lambda: worker.process.poll() is not None, patience=3.0)

    assert worker.wait() == 0
    assert status_of(job) == "SUCCESSFUL"


def test_what_a_dead_child_held_is_done_though_somebody_has_locked_it(start, notes, folder, queue):
    held = jobs.hold.using(queue_name=queue).enqueue(folder)
    worker = start("--batch", "--processes", "2")
    (note,) = wait_for("the start", lambda: notes.read("start"))
    with psycopg.connect(database_url()) as somebody:
        somebody.execute("SELECT FROM durable_job WHERE id = %s FOR UPDATE", [held.pk])
        os.kill(note["pid"], signal.SIGKILL)
        notes.let_go()
        with pytest.raises(AssertionError, match="in vain"):
            wait_for("the end", lambda: worker.process.poll() is not None, patience=3.0)

    assert worker.wait() == 0
    assert (status_of(held), fresh(held).attempt) == ("SUCCESSFUL", 2)
