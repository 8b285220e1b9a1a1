"""Workers where the system gives them little: no output, a full disk, few descriptors."""

from __future__ import annotations

import pytest

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


def test_a_worker_of_an_unknown_queue_says_so_and_waits_for_it(start, queue):
    worker = start(f"--queue-name={queue}-later,default").wait_until_ready()
    said = worker.wait_for_line(f"unfinished job has the queue {queue}-later;")
    assert "Known: default" in said

    job = jobs.echo.using(queue_name=f"{queue}-later").enqueue("first of its queue")

    assert job.result(SOON) == "first of its queue"
    worker.stop()


def test_nothing_is_said_of_queues_that_a_row_or_a_job_has(start, queue):
    jobs.echo.using(queue_name=queue).enqueue(1)
    Queue.objects.create(name=f"{queue}-row")
    worker = start(f"--queue-name={queue},{queue}-row").wait_until_ready()

    assert jobs.echo.using(queue_name=queue).enqueue(2).result(SOON) == 2
    assert "has the queue" not in worker.log
    worker.stop()
