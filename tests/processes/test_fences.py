"""Leases and fences: who lives keeps his jobs, and who has lost one can do nothing to it."""

from __future__ import annotations

import os
import signal

import pytest
from django.db.models.functions import Now

from django_durable.models import Job
from tests.processes.harness import fresh, wait_for, wait_for_end, wait_for_status
from tests.workerapp import jobs

SOON = 30


@pytest.mark.parametrize(
    ("job_type", "seconds"),
    [(jobs.grind, 4.0), (jobs.hold_interpreter, 5)],
    ids=["working", "holding the interpreter"],
)
def test_a_child_stuck_in_c_code_keeps_its_job(start, notes, folder, queue, job_type, seconds):
    for _ in range(2):
        start("--lease", "2s", "--poll-interval", "0.2").wait_until_ready()
    job = job_type.using(queue_name=queue).enqueue(folder, seconds)

    assert job.result(SOON) == 1

    (begin,), (end,) = notes.read("start"), notes.read("end")
    # A second worker was there to take it.
    assert end["at"] - begin["at"] > 2.5
    assert (fresh(job).attempt, fresh(job).attempts.count()) == (1, 0)


def test_a_worker_frozen_past_its_lease_can_change_nothing_when_it_thaws(
    start, notes, folder, queue
):
    frozen = start("--lease", "2s", "--name", "same", SIGNAL_NOTES=folder)
    plain = jobs.hold.using(queue_name=queue).enqueue(folder, "plain")
    on_loop = jobs.async_hold.using(queue_name=queue).enqueue(folder, "loop")
    checking = jobs.check_until_cancelled.using(queue_name=queue).enqueue(folder)
    all_three = (plain, on_loop, checking)
    wait_for("the starts", lambda: len(notes.read("start")) == 3)
    first = frozen.row().incarnation

    frozen.send_all(signal.SIGSTOP)
    # Its successor has the same name, and is another incarnation.
    start("--lease", "2s", "--name", "same")
    wait_for("the second starts", lambda: len(notes.read("start", attempt=2)) == 3)
    held = {job.pk: (fresh(job).epoch, fresh(job).claimer) for job in all_three}

    frozen.send_all(signal.SIGCONT)
    lost = wait_for("the signals", lambda: (n := notes.read("lease_lost"))[2:] and n)
    assert {(note["job"], note["attempt"]) for note in lost} == {(str(j.pk), 1) for j in all_three}
    # What can be stopped is.
    wait_for("the loop's run to stop", lambda: notes.read("cancelled", label="loop"))
    wait_for("the check to stop", lambda: notes.read("stopped", by="ClaimLost"))
    for job in all_three:
        assert (fresh(job).epoch, fresh(job).claimer) == held[job.pk]
        assert fresh(job).status == Job.Status.RUNNING

    # The frozen worker's own function returns, too, and is not heard.
    notes.let_go()
    wait_for("both ends", lambda: len(notes.read("end", label="plain")) == 2)
    checking.cancel("enough")
    plain, on_loop, checking = wait_for_end(*all_three)
    assert (plain.status, plain.return_value, plain.attempt) == ("SUCCESSFUL", "plain", 2)
    assert (on_loop.status, on_loop.return_value, on_loop.attempt) == ("SUCCESSFUL", "loop", 2)
    assert (checking.status, checking.attempt) == ("CANCELLED", 2)
    for job in (plain, on_loop):
        assert [(a.number, a.outcome) for a in job.attempts.all()] == [(1, "lost")]
    assert len(notes.read("lease_lost")) == 3

    # It goes on as the worker that it was.
    assert frozen.row().incarnation == first
    frozen.stop()


@pytest.mark.parametrize("job_type", [jobs.hold, jobs.flaky], ids=["success", "failure"])
def test_what_a_thawed_worker_has_to_record_comes_too_late(start, notes, folder, queue, job_type):
    frozen = start("--lease", "2s", SIGNAL_NOTES=folder)
    args = (folder, "job") if job_type is jobs.hold else (folder, 0)
    held = jobs.hold.using(queue_name=queue).enqueue(folder, "job")
    wait_for("the start", lambda: notes.read("start"))
    frozen.send_all(signal.SIGSTOP)
    rescuer = start("--lease", "2s")
    wait_for("the second start", lambda: notes.read("start", attempt=2))
    notes.let_go()
    done = wait_for_status(held, Job.Status.SUCCESSFUL)

    frozen.send_all(signal.SIGCONT)
    wait_for("the signal", lambda: notes.read("lease_lost", job=str(held.pk)))

    after = fresh(held)
    assert (after.epoch, after.finished_at, after.attempt) == (done.epoch, done.finished_at, 2)
    assert not notes.read("job_succeeded", job=str(held.pk))
    # Its slot is free and serves again.
    rescuer.stop()
    assert job_type.using(queue_name=queue).enqueue(*args).result(SOON)


def test_a_lapsed_lease_that_nobody_took_still_counts(start, notes, folder, queue):
    worker = start("--lease", "2s")
    job = jobs.hold.using(queue_name=queue).enqueue(folder)
    wait_for("the start", lambda: notes.read("start"))

    worker.send_all(signal.SIGSTOP)
    wait_for("the lease to lapse", lambda: lapsed(job))
    notes.let_go()
    worker.send_all(signal.SIGCONT)

    (job,) = wait_for_end(job)
    assert (job.status, job.attempt) == (Job.Status.SUCCESSFUL, 1)


def lapsed(job: Job) -> bool:
    return Job.objects.filter(pk=job.pk, lease_until__lt=Now()).exists()


def test_a_frozen_child_keeps_its_jobs_while_its_supervisor_lives(start, notes, folder, queue):
    worker = start("--lease", "2s")
    start("--lease", "2s").wait_until_ready()
    job = jobs.hold.using(queue_name=queue).enqueue(folder)
    (note,) = wait_for("the start", lambda: notes.read("start"))
    before = fresh(job).lease_until

    os.kill(note["pid"], signal.SIGSTOP)
    wait_for("two leases to pass", lambda: (fresh(job).lease_until - before).total_seconds() > 4)
    os.kill(note["pid"], signal.SIGCONT)
    notes.let_go()

    assert job.result(SOON) == "job"
    assert (fresh(job).attempt, fresh(job).attempts.count()) == (1, 0)
    assert worker.process.poll() is None
