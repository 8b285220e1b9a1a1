"""Attempts that overrun their timeout: recorded on time, whatever they are stuck in."""

from __future__ import annotations

import os
import signal
from datetime import datetime, timedelta

import pytest

from django_durable.models import Job
from tests.processes.harness import fresh, wait_for, wait_for_end
from tests.workerapp import jobs

SOON = 20


def shared(job_type, **options):
    return job_type.using(queue_name="shared", **options)


@pytest.mark.parametrize("job_type", [jobs.overrun, jobs.async_overrun, jobs.overrun_blocking_loop])
def test_an_overrun_is_recorded_on_time(worker, notes, folder, job_type):
    job = shared(job_type).enqueue(folder)

    (job,) = wait_for_end(job)

    assert not notes.read("end")
    attempt = job.attempts.get()
    assert (attempt.outcome, attempt.error_class) == ("timed_out", "JobTimeout")
    assert timedelta(seconds=0.5) <= attempt.finished_at - attempt.started_at
    assert attempt.finished_at - attempt.started_at < timedelta(seconds=2)
    assert (job.status, job.dead_letter.reason) == (Job.Status.DEAD, "exhausted")
    (start,) = notes.read("start")
    deadline = datetime.fromisoformat(start["deadline"])
    assert deadline == attempt.started_at + timedelta(seconds=0.5)
    wait_for("the hook", lambda: notes.read("hook", reason="exhausted"))

    # A value that comes too late is not heard.
    notes.let_go()
    if job_type is jobs.async_overrun:
        assert notes.read("cancelled")
    assert shared(jobs.echo).enqueue(1).result(SOON) == 1
    assert shared(jobs.async_noop).enqueue().result(SOON) is None
    assert fresh(job).return_value is None


def test_a_timeout_is_retried_whatever_retry_on_says(worker, notes, folder):
    job = shared(jobs.overrun_unless_retried).enqueue(folder)

    assert job.result(SOON) == 2

    assert [(a.outcome, a.error_class) for a in job.attempts.all()] == [("timed_out", "JobTimeout")]
    notes.let_go()


def test_a_stuck_thread_stops_at_its_next_durable_verb(worker, notes, folder):
    job = shared(jobs.check_until_cancelled, timeout=timedelta(seconds=0.5), max_attempts=1)
    job = job.enqueue(folder)

    (job,) = wait_for_end(job)

    assert job.attempts.get().outcome == "timed_out"
    wait_for("the run to stop", lambda: notes.read("stopped", by="RunTimedOut"))


def test_stuck_threads_take_no_slot(start, notes, folder, queue):
    worker = start("--concurrency", "2")
    stuck = [jobs.overrun.using(queue_name=queue).enqueue(folder) for _ in range(4)]
    quick = [jobs.work.using(queue_name=queue).enqueue(folder, str(n), 0.05) for n in range(6)]

    assert [job.status for job in wait_for_end(*stuck)] == [Job.Status.DEAD] * 4
    assert [job.status for job in wait_for_end(*quick)] == [Job.Status.SUCCESSFUL] * 6
    assert not notes.read("end", label=None)
    assert all(job.attempt == 1 for job in wait_for_end(*stuck, *quick))
    worker.stop()


def test_the_timeouts_of_a_frozen_child_hold(start, notes, folder, queue):
    worker = start("--lease", "4s")
    call = jobs.hold.using(queue_name=queue, timeout=timedelta(seconds=3), max_attempts=1)
    job = call.enqueue(folder)
    (note,) = wait_for("the start", lambda: notes.read("start"))
    os.kill(note["pid"], signal.SIGSTOP)

    (job,) = wait_for_end(job)

    attempt = job.attempts.get()
    assert (attempt.outcome, attempt.error_class) == ("timed_out", "JobTimeout")
    assert attempt.finished_at - attempt.started_at < timedelta(seconds=10)
    # Others go on in a child that is not frozen.
    assert jobs.echo.using(queue_name=queue).enqueue(2).result(SOON) == 2
    worker.stop()
