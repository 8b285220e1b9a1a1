"""Cancelling jobs that real workers run."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from django_durable import JobCancelled
from django_durable.models import DeadLetter, Job
from tests.processes.harness import fresh, wait_for, wait_for_end, wait_for_status
from tests.workerapp import jobs

SOON = 20


def shared(job_type, **options):
    return job_type.using(queue_name="shared", **options)


def outcomes(job: Job) -> list[tuple[str, str]]:
    return [(attempt.outcome, attempt.error_class) for attempt in job.attempts.all()]


def renewals(job: Job) -> Callable[[], bool]:
    """Return what tells whether the lease of the job has been renewed since now."""
    before = fresh(job).lease_until
    return lambda: fresh(job).lease_until != before


def test_a_running_job_learns_of_it_when_it_asks(worker, notes, folder):
    job = shared(jobs.check_until_cancelled).enqueue(folder)
    wait_for("the start", lambda: notes.read("start"))

    assert job.cancel("not needed") == "requested"

    with pytest.raises(JobCancelled, match="not needed"):
        job.result(SOON)
    assert notes.read("stopped", by="CancelRequested")
    job = fresh(job)
    assert job.cancel_reason == "not needed"
    assert outcomes(job) == [("cancelled", "CancelRequested")]
    assert not DeadLetter.objects.filter(job=job).exists()


def test_async_code_is_cancelled(worker, notes, folder):
    job = shared(jobs.async_hold).enqueue(folder)
    wait_for("the start", lambda: notes.read("start"))

    job.cancel()

    (job,) = wait_for_end(job)
    assert job.status == Job.Status.CANCELLED
    assert len(notes.read("cancelled")) == 1
    assert not notes.read("end")
    assert outcomes(job) == [("cancelled", "asyncio.exceptions.CancelledError")]


def test_async_code_that_waits_for_a_busy_loop_is_cancelled_before_it_starts(worker, notes, folder):
    busy = shared(jobs.block_loop).enqueue(folder)
    wait_for("the start", lambda: notes.read("start"))
    job = shared(jobs.async_unlimited).enqueue()
    wait_for_status(job, Job.Status.RUNNING)

    assert job.cancel() == "requested"
    # The worker hears of it while the loop is busy: one that it hears of later is told the loop.
    wait_for("a renewal", renewals(job))
    notes.let_go()

    (job, busy) = wait_for_end(job, busy)
    assert (job.status, busy.status) == (Job.Status.CANCELLED, Job.Status.SUCCESSFUL)
    assert outcomes(job) == [("cancelled", "CancelRequested")]


def test_a_job_that_raises_after_the_request_is_cancelled_with_its_error_kept(
    worker, notes, folder
):
    job = shared(jobs.check_until_cancelled).enqueue(folder, "raise")
    wait_for("the start", lambda: notes.read("start"))

    job.cancel("stop it")

    (job,) = wait_for_end(job)
    assert (job.status, job.cancel_reason) == (Job.Status.CANCELLED, "stop it")
    assert outcomes(job) == [("cancelled", "ValueError")]
    assert job.attempts.get().message == "on the way out"
    assert not DeadLetter.objects.filter(job=job).exists()


@pytest.mark.parametrize("job_type", [jobs.check_until_cancelled, jobs.hold])
def test_a_job_that_returns_after_the_request_is_successful(worker, notes, folder, job_type):
    job = shared(job_type).enqueue(folder, "return")
    wait_for("the start", lambda: notes.read("start"))

    assert job.cancel() == "requested"
    notes.let_go()

    assert job.result(SOON) in ("returned", "return")
    assert outcomes(job) == []


@pytest.mark.parametrize(
    ("then", "status", "error_class"),
    [
        ("raise", "CANCELLED", "tests.workerapp.jobs.FlakyError"),
        ("reject", "CANCELLED", None),
        ("return", "SUCCESSFUL", None),
    ],
)
def test_a_job_may_cancel_itself(worker, then, status, error_class):
    job = shared(jobs.cancel_itself).enqueue(then)

    (job,) = wait_for_end(job)

    assert job.status == status
    assert outcomes(job) == ([("cancelled", error_class)] if error_class else [])


def test_a_job_that_waits_never_runs(worker, notes, folder):
    job = shared(jobs.work, run_after=timedelta(seconds=0.5)).enqueue(folder, "cancelled")
    assert job.cancel("early") == "cancelled"
    later = shared(jobs.work, run_after=timedelta(seconds=1)).enqueue(folder, "later")

    later.result(SOON)

    assert [note["label"] for note in notes.read("start")] == ["later"]
    assert fresh(job).attempt == 0


def test_a_job_that_has_ended_cannot_be_cancelled(worker):
    job = shared(jobs.echo).enqueue(1)
    job.result(SOON)

    assert job.cancel("late") == "finished"
    assert job.result(SOON) == 1


def test_many_running_jobs_are_cancelled_at_once(start, notes, folder, queue):
    start("--concurrency", "150", "--lease", "60s", "-v", "0")
    job_type = jobs.async_hold.using(queue_name=queue)
    job_type.enqueue_many([((folder, str(number)), {}) for number in range(120)])
    wait_for("the starts", lambda: len(notes.read("start")) == 120)

    Job.objects.in_queue(queue).cancel(reason="all of them")

    # Too many for one notification; still before the next renewal.
    wait_for("the first to hear of it", lambda: notes.read("cancelled"), 4.5)
    wait_for("their ends", lambda: not Job.objects.in_queue(queue).running().exists())
    ended = Job.objects.in_queue(queue).values_list("status", flat=True)
    assert set(ended) == {Job.Status.CANCELLED}


def test_async_code_may_clean_up_undisturbed_when_it_is_cancelled(start, notes, folder, queue):
    # A renewal, every half a second, says it again.
    start("--lease", "2s")
    job = jobs.clean_up_when_cancelled.using(queue_name=queue).enqueue(folder, 2.0)
    wait_for("the start", lambda: notes.read("start"))

    job.cancel()
    job.cancel()

    assert wait_for_end(job)[0].status == Job.Status.CANCELLED
    assert notes.read("cleaned")
