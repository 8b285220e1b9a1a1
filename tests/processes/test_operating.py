"""What operators and workers decide while queues run: pause, drain, capabilities, rejections."""

from __future__ import annotations

import signal
import time

import pytest
from django.contrib.auth.models import User
from django.test import Client

from django_durable.models import Job, Queue, Worker
from tests.admin.world import act
from tests.processes.harness import (
    fresh,
    make_known,
    status_of,
    wait_for,
    wait_for_end,
    wait_for_status,
)
from tests.workerapp import jobs

SOON = 20


def looked_again(queue: str) -> None:
    """Wait until each worker has looked for work once more: all they can take, they have."""
    probe = jobs.noop.using(queue_name=f"{queue}-probe").enqueue()
    probe.result(SOON)


def test_a_pause_lets_what_runs_finish_and_starts_nothing_until_the_resume(
    start, notes, folder, queue
):
    make_known(f"{queue}-probe")
    start("-q", f"{queue},{queue}-probe", "--poll-interval", "60s")
    running = [jobs.hold.using(queue_name=queue).enqueue(folder, "first") for _ in range(2)]
    wait_for("the starts", lambda: len(notes.read("start")) == 2)

    Queue.objects.pause(queue)
    waiting = [jobs.hold.using(queue_name=queue).enqueue(folder, "later") for _ in range(3)]
    notes.let_go("first")
    wait_for_end(*running)
    looked_again(queue)

    assert [status_of(job) for job in running] == [Job.Status.SUCCESSFUL] * 2
    assert [status_of(job) for job in waiting] == [Job.Status.READY] * 3
    assert fresh(waiting[0]).blocked_on == f"queue {queue!r} is paused"
    assert len(notes.read("start")) == 2

    resumed_at = time.monotonic()
    Queue.objects.get(name=queue).resume()
    wait_for("the starts", lambda: len(notes.read("start")) == 5)
    # A worker that polls once a minute was woken.
    assert time.monotonic() - resumed_at < SOON
    notes.let_go()
    wait_for_end(*waiting)


def test_a_limit_below_what_runs_kills_nothing_and_starts_nothing_until_it_fits(
    start, notes, folder, queue
):
    make_known(f"{queue}-probe")
    start("-q", f"{queue},{queue}-probe")
    for label in "abc":
        jobs.hold.using(queue_name=queue).enqueue(folder, label)
        wait_for("the start", lambda label=label: notes.read("start", label=label))

    Queue.objects.update_or_create(name=queue, defaults={"max_running": 2})
    waiting = jobs.hold.using(queue_name=queue).enqueue(folder, "d")
    # One poll later the worker knows.
    wait_for("the limit", lambda: "is at its limit of 2" in fresh(waiting).blocked_on)
    for label in "ab":
        looked_again(queue)
        assert not notes.read("start", label="d")
        notes.let_go(label)
        wait_for("the end", lambda label=label: notes.read("end", label=label))

    wait_for("the start", lambda: notes.read("start", label="d"))
    assert not notes.read("end", label="c")
    notes.let_go()
    assert wait_for_status(waiting, Job.Status.SUCCESSFUL).attempt == 1


def test_draining_one_of_two_workers_ends_it_and_loses_no_job(start, notes, folder, queue):
    made = [jobs.hold.using(queue_name=queue).enqueue(folder, "held") for _ in range(2)]
    one = start("--concurrency", "1", "--lease", "60s", "--name", "one")
    two = start("--concurrency", "1", "--lease", "60s", "--name", "two")
    wait_for("the starts", lambda: len(notes.read("start")) == 2)
    made += [jobs.work.using(queue_name=queue).enqueue(folder, str(n)) for n in range(20)]
    row = one.row()
    client = Client()
    client.force_login(User.objects.create_superuser(f"root-{queue}"))
    # Its next heartbeat is seconds away, so that it can't be what tells the worker.
    before = row.heartbeat_at
    wait_for("a heartbeat", lambda: Worker.objects.get(pk=row.pk).heartbeat_at > before)

    asked_at = time.monotonic()
    act(client, "drain_selected", row, model="worker", confirm="yes")
    one.wait_for_line("Stopping")
    assert time.monotonic() - asked_at < 4.5

    assert Worker.objects.get(pk=row.pk).draining
    notes.let_go()
    assert one.wait() == 0
    assert not one.family()
    ended = wait_for_end(*made)
    assert {(job.status, job.attempt) for job in ended} == {(Job.Status.SUCCESSFUL, 1)}
    assert {job.worker for job in ended[2:]} == {"two"}
    assert two.process.poll() is None


def test_a_job_waits_for_a_worker_with_its_capability_which_takes_plain_ones_too(
    start, notes, folder, queue
):
    plain = start("--name", "plain").wait_until_ready()
    job = jobs.on_gpu.using(queue_name=queue).enqueue(folder)
    wait_for("the plain worker", lambda: Worker.objects.filter(name="plain").exists())
    jobs.noop.using(queue_name=queue).enqueue().result(SOON)

    assert status_of(job) == Job.Status.READY
    assert job.blocked_on == (
        "no live worker serves it: nobody who serves its queue and job type has capability 'gpu'"
    )

    start("--name", "gpu", "--capability", "gpu", "--concurrency", "1")
    assert wait_for_status(job, Job.Status.SUCCESSFUL).worker == "gpu"
    plain.stop()
    own = jobs.noop.using(queue_name=queue).enqueue()
    assert wait_for_status(own, Job.Status.SUCCESSFUL).worker == "gpu"


@pytest.mark.parametrize("failures", [0, 1])
def test_a_job_that_one_worker_does_not_accept_is_run_by_another(
    start, notes, folder, queue, failures
):
    start("--name", "strict", WORKER="strict", ACCEPTS="no")
    job = jobs.picky.using(queue_name=queue).enqueue(folder, failures)
    wait_for("the question", lambda: notes.read("asked", by="strict"))
    start("--name", "kind", WORKER="kind", ACCEPTS="yes")

    assert job.result(SOON) == "kind"

    job = fresh(job)
    assert job.attempt == 1 + failures
    assert job.rejections >= 1
    assert job.attempts.count() == failures
    assert not notes.read("run", by="strict")


def test_a_worker_takes_no_more_than_its_free_slots(start, notes, folder, queue):
    made = [jobs.hold.using(queue_name=queue).enqueue(folder, str(n)) for n in range(8)]
    full = start("--processes", "2", "--concurrency", "2", "--name", "full")
    wait_for("the starts", lambda: len(notes.read("start")) == 4)

    running = Job.objects.in_queue(queue).running()
    assert running.count() == 4
    notes.let_go("0")
    wait_for("one more", lambda: len(notes.read("start")) == 5)
    # What has ended is RUNNING until its end is recorded.
    wait_for("the record", lambda: running.count() == 4)
    # The others are free for a worker that joins.
    start("--name", "joined", "--concurrency", "10")
    wait_for("the rest", lambda: len(notes.read("start")) == 8)
    assert running.filter(worker="full").count() == 4
    full.send(signal.SIGTERM)
    notes.let_go()
    assert full.wait() == 0
    assert {job.attempt for job in wait_for_end(*made)} == {1}
