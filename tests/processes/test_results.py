"""`job.result()` from another process than the one that runs the job."""

from __future__ import annotations

import asyncio
import statistics
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from asgiref.sync import sync_to_async
from django.db import connection, connections

from django_durable import JobCancelled, JobFailed
from django_durable.models import Job
from tests.processes.harness import status_of, wait_for, wait_for_status
from tests.workerapp import jobs
from tests.workerapp.notes import Notes

SOON = 20


@pytest.fixture(autouse=True)
def _slow_poll(settings):
    # What comes sooner was notified.
    settings.DURABLE_POLL_INTERVAL = timedelta(seconds=5)


def shared(job_type, **options):
    return job_type.using(queue_name="shared", **options)


@pytest.mark.parametrize("value", [42, None, "text", [1, {"a": None}], (1, b"\x00"), 1e16])
def test_result_returns_the_value(worker, value):
    result = shared(jobs.echo).enqueue(value).result(timeout=SOON)

    assert result == value
    assert type(result) is type(value)


def test_result_of_another_process_is_had_by_id(worker):
    job = Job.objects.get(pk=shared(jobs.echo).enqueue("here").pk)

    assert job.result(timeout=timedelta(seconds=SOON)) == "here"
    assert job.status == Job.Status.SUCCESSFUL


def test_result_of_a_dead_job_raises_with_its_error(worker, folder):
    job = shared(jobs.flaky, max_attempts=2).enqueue(folder)

    with pytest.raises(JobFailed) as caught:
        job.result(timeout=SOON)

    error = caught.value
    assert error.error_class == "tests.workerapp.jobs.FlakyError"
    assert error.message == "failure 2"
    assert "failure 2" in str(error)
    assert "raise FlakyError" in error.traceback
    assert error.dead_letter.job_id == job.pk
    assert error.dead_letter.attempt_count == 2
    assert error.job.pk == job.pk


def test_result_of_a_cancelled_job_raises_with_its_reason(worker):
    job = shared(jobs.noop, run_after=timedelta(hours=1)).enqueue()
    job.cancel(reason="not wanted")

    with pytest.raises(JobCancelled, match="not wanted"):
        job.result(timeout=SOON)


def test_result_raises_timeout_error_while_the_job_lives(worker, notes, folder):
    job = shared(jobs.hold).enqueue(folder)
    wait_for("the start", lambda: notes.read("start"))

    with pytest.raises(TimeoutError, match="RUNNING"):
        job.result(timeout=0.2)
    with pytest.raises(TimeoutError):
        job.result(timeout=0)
    notes.let_go()
    assert job.result(timeout=SOON) == "job"


def test_many_wait_for_one_job_at_once(worker, notes, folder):
    job = shared(jobs.hold).enqueue(folder)

    def wait(_):
        try:
            return Job.objects.get(pk=job.pk).result(timeout=SOON)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(wait, number) for number in range(4)]
        wait_for("four who listen", lambda: listeners() == 4)
        notes.let_go()
        assert [one.result(SOON) for one in waiting] == ["job"] * 4


def listeners() -> int:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE datname = current_database() AND query = 'LISTEN durable_ended'"
        )
        return cursor.fetchone()[0]


def test_async_code_awaits_results(worker, notes, folder):
    async def both():
        first = await shared(jobs.hold).aenqueue(folder)
        second = await shared(jobs.echo).aenqueue(2)
        value = await second.aresult(timeout=SOON)
        notes.let_go()
        values = await first.aresult(timeout=SOON), value
        await sync_to_async(connections.close_all)()
        return values

    assert asyncio.run(both()) == ("job", 2)


def test_result_wakes_within_100_ms_of_the_commit(worker, tmp_path):
    delays = []
    for number in range(9):
        own = Notes(tmp_path / str(number))
        own.folder.mkdir()
        job = shared(jobs.hold).enqueue(str(own.folder))
        wait_for("the start", lambda own=own: own.read("start"))
        threading.Timer(0.05, own.let_go).start()
        job.result(timeout=SOON)
        delays.append(since_end(job))

    assert statistics.median(delays) < 0.1, delays


def since_end(job: Job) -> float:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT extract(epoch FROM clock_timestamp() - finished_at) FROM durable_job"
            " WHERE id = %s",
            [job.pk],
        )
        return float(cursor.fetchone()[0])


def test_start_of_a_job_is_notified_too(worker):
    waits = []
    for _ in range(9):
        job = shared(jobs.noop).enqueue()
        job.result(timeout=SOON)
        job.refresh_from_db()
        waits.append((job.started_at - job.enqueued_at).total_seconds())

    # The worker's poll is 5 s.
    assert statistics.median(waits) < 0.1, waits


def test_completion_and_value_are_one_commit(worker):
    made = [shared(jobs.echo).enqueue(number) for number in range(50)]
    ours = Job.objects.filter(pk__in=[job.pk for job in made])

    def all_ended():
        seen = ours.values_list("status", "return_value")
        assert all((value is None) == (status != Job.Status.SUCCESSFUL) for status, value in seen)
        return all(status == Job.Status.SUCCESSFUL for status, _value in seen)

    wait_for("the jobs to end", all_ended)


def test_without_notifications_the_poll_finds_jobs_and_results(start, settings, queue):
    settings.DURABLE_NOTIFY = False
    settings.DURABLE_POLL_INTERVAL = timedelta(seconds=0.2)
    worker = start(DURABLE_NOTIFY="0", DURABLE_POLL_INTERVAL="0.2").wait_until_ready()
    assert "woken by a poll every 0.2 s" in worker.log
    jobs.noop.using(queue_name=queue).enqueue().result(timeout=SOON)
    waits, delays = [], []

    for _ in range(5):
        job = jobs.noop.using(queue_name=queue).enqueue()
        job.result(timeout=SOON)
        delays.append(since_end(job))
        job.refresh_from_db()
        waits.append((job.started_at - job.enqueued_at).total_seconds())

    assert statistics.median(waits) < 0.3, waits
    assert statistics.median(delays) < 0.3, delays


def test_a_cancel_reaches_a_running_job_without_notifications(
    start, settings, notes, folder, queue
):
    settings.DURABLE_NOTIFY = False
    start("--lease", "2s", DURABLE_NOTIFY="0", DURABLE_POLL_INTERVAL="0.2")
    job = jobs.async_hold.using(queue_name=queue).enqueue(folder)
    wait_for("the start", lambda: notes.read("start"))

    assert job.cancel() == "requested"
    wait_for_status(job, Job.Status.CANCELLED)
    assert notes.read("cancelled")
    assert status_of(job) == Job.Status.CANCELLED
