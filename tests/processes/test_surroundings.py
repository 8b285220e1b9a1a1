"""Workers where the system gives them little: no output, a full disk, few descriptors."""

from __future__ import annotations

from io import StringIO

import pytest
from django.core.management import call_command

from django_durable.models import Job, Queue
from tests.processes.harness import wait_for, wait_for_end
from tests.workerapp import jobs

SOON = 30


@pytest.mark.parametrize(
    "output",
    [">&- 2>&-", "<&- >&- 2>&-", ">/dev/full 2>&1", "2>&1 | true"],
    ids=["closed", "all closed", "a full disk", "a reader that left"],
)
def test_a_worker_needs_no_output(start, folder, queue, output):
    is_piped = "|" in output
    worker = start("-v", "3", through=f'"$@" {output}' if is_piped else f'exec "$@" {output}')
    flaky = jobs.flaky.using(queue_name=queue).enqueue(folder, 1)

    assert flaky.result(SOON) == 2
    assert jobs.async_noop.using(queue_name=queue).enqueue().result(SOON) is None
    if not is_piped:
        worker.stop()


def test_a_worker_with_few_descriptors_runs_all_its_jobs(start, notes, folder, queue):
    worker = start("--concurrency", "60", through='ulimit -n 48; exec "$@"')
    held = jobs.hold_connected.using(queue_name=queue, max_attempts=None)
    made = [held.enqueue(folder, str(number)) for number in range(60)]

    # More than there are descriptors for: some fail for now, and are tried again.
    wait_for("the first starts", lambda: len(notes.read("start")) > 5)
    notes.let_go()

    with worker.explained():
        ended = wait_for_end(*made, patience=60)
    assert {job.status for job in ended} == {Job.Status.SUCCESSFUL}
    assert jobs.echo.using(queue_name=queue).enqueue(1).result(SOON) == 1
    worker.stop()


def test_a_worker_of_an_unknown_queue_is_refused_with_a_sentence(start, queue):
    worker = start(f"--queue-name={queue[:-1]},elsewhere,default")

    assert worker.wait() == 1
    assert f"No job type, job or row names the queue {queue[:-1]!r}; did you mean {queue!r}?" in (
        worker.log
    )
    assert "names the queue 'elsewhere'; known: default" in worker.log
    assert "manage.py durable limit QUEUE --max-running none" in worker.log
    assert "Traceback" not in worker.log


def test_a_queue_whose_first_job_is_yet_to_come_is_made_known(start, queue):
    call_command("durable", "limit", f"{queue}-later", "--max-running", "none", stderr=StringIO())
    worker = start(f"--queue-name={queue}-later").wait_until_ready()

    job = jobs.echo.using(queue_name=f"{queue}-later").enqueue("first of its queue")

    assert job.result(SOON) == "first of its queue"
    worker.stop()


def test_a_queue_that_a_job_names_is_known_after_the_job_is_gone(start, queue):
    job = jobs.echo.using(queue_name=f"{queue}-named").enqueue(1)
    # Ended: no worker would find it by its lane.
    job.cancel()
    assert start(f"--queue-name={queue}-named", "--batch").wait() == 0
    Job.all_objects.filter(pk=job.pk).delete()

    assert start(f"--queue-name={queue}-named", "--batch").wait() == 0
    assert not Queue.objects.filter(name="default").exists()


def test_an_excluded_queue_that_nothing_names_is_warned_of(start, queue):
    worker = start("--queue-name=*", f"--exclude-queue={queue[:-1]},{queue}").wait_until_ready()

    worker.wait_for_line(f"names the queue {queue[:-1]!r}; did you mean {queue!r}? It is excluded")
    assert f"names the queue {queue!r};" not in worker.log
    worker.stop()


@pytest.mark.parametrize(
    ("chosen", "threshold"), [("", 10_000), ("500", 10_000), ("50000", 50_000), ("0", 0)]
)
def test_a_child_collects_garbage_seldom_or_as_the_project_says(start, queue, chosen, threshold):
    worker = start(GARBAGE_AT=chosen)

    job = jobs.garbage_collection.using(queue_name=queue).enqueue()

    assert job.result(SOON) == (threshold, False)
    worker.stop()
