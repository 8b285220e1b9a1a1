"""What the attempts of real workers come to: how many there are, when, and what is recorded."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection
from django.db.models.expressions import RawSQL
from django.db.models.functions import Now

from django_durable import Backoff, JobFailed
from django_durable.models import DeadLetter, Job
from tests.processes.harness import (
    fresh,
    status_of,
    wait_for,
    wait_for_end,
    wait_for_status,
)
from tests.workerapp import jobs

SOON = 20


def shared(job_type, **options):
    return job_type.using(queue_name="shared", **options)


@pytest.mark.parametrize("most", [1, 2, 3])
def test_a_failing_job_runs_exactly_max_attempts_times(worker, notes, folder, most):
    job = shared(jobs.flaky, max_attempts=most).enqueue(folder)

    (job,) = wait_for_end(job)

    assert [note["attempt"] for note in notes.read("run")] == list(range(1, most + 1))
    assert (job.status, job.attempt) == (Job.Status.DEAD, most)
    assert [(a.number, a.outcome, a.message) for a in job.attempts.all()] == [
        (number, "failed", f"failure {number}") for number in range(1, most + 1)
    ]
    assert (job.dead_letter.reason, job.dead_letter.attempt_count) == ("exhausted", most)
    assert {attempt.worker for attempt in job.attempts.all()} == {fresh(job).worker}


def test_a_job_that_fails_twice_and_then_works_is_successful(worker, notes, folder):
    job = shared(jobs.flaky).enqueue(folder, 2)

    assert job.result(SOON) == 3
    assert len(notes.read("run")) == 3
    assert job.attempts.count() == 2
    assert not DeadLetter.objects.filter(job=job).exists()


@pytest.mark.parametrize("job_type", [jobs.noop, jobs.async_noop], ids=["plain", "async"])
@pytest.mark.parametrize(
    "columns",
    [
        {"options": {"timeout": "soon"}},
        {"options": {"timeout": 1e300}},
        {"options": {"backoff": 5}},
        {"options": ["timeout"]},
        {"options": []},
        {"options": ""},
        {"metadata": 5},
        {"args": "no JSON"},
        {"args": "5"},
        {"kwargs": "[1]"},
    ],
    ids=str,
)
def test_a_row_that_nobody_can_read_dies_and_keeps_none_from_running(worker, job_type, columns):
    made = [
        shared(job_type, run_after=timedelta(hours=1)).enqueue(),
        shared(jobs.echo, run_after=timedelta(hours=1)).enqueue(1),
    ]
    Job.objects.filter(pk=made[0].pk).update(**columns)
    # Both due at one moment, so that one claim takes both.
    Job.objects.filter(pk__in=[job.pk for job in made]).update(due_at=Now(), run_after=Now())

    assert made[1].result(SOON) == 1
    (bad,) = wait_for_end(made[0])
    assert (bad.status, bad.attempt, bad.attempts.count()) == (Job.Status.DEAD, 1, 1)
    assert bad.dead_letter.reason in ("undecodable", "permanent")


def test_a_number_that_only_postgresql_can_read_keeps_none_from_running(worker):
    made = [shared(jobs.echo, run_after=timedelta(hours=1)).enqueue(1) for _ in range(2)]
    Job.objects.filter(pk=made[0].pk).update(
        options=RawSQL("jsonb_build_object('timeout', repeat('9', 5000)::numeric)", [])
    )
    Job.objects.filter(pk__in=[job.pk for job in made]).update(due_at=Now(), run_after=Now())

    assert made[1].result(SOON) == 1
    wait_for("its death", lambda: status_of(made[0]) == Job.Status.DEAD)
    made[0].tree().update(options={})


@pytest.mark.parametrize("delay", [5, "5 s", timedelta(seconds=-1), timedelta.max, "none at all"])
def test_a_rejection_for_what_is_no_duration_is_a_failure(worker, delay):
    (job,) = wait_for_end(shared(jobs.reject_oddly).enqueue(delay))

    assert (job.status, job.attempt, job.rejections) == (Job.Status.DEAD, 1, 0)
    assert job.dead_letter.reason == "exhausted"


def test_a_dead_job_that_somebody_made_ready_by_hand_can_die_again(worker):
    (job,) = wait_for_end(shared(jobs.raising).enqueue("ValueError"))
    # First, since the worker takes the job at once.
    DeadLetter.objects.filter(job=job).update(reason="lost")
    Job.objects.filter(pk=job.pk).update(
        status="READY", due_at=Now(), finished_at=None, kept_until=None
    )

    (job,) = wait_for_end(job)
    assert (job.status, job.attempt, job.dead_letter.reason) == (Job.Status.DEAD, 2, "exhausted")
    assert job.dead_letter.attempt_count == 2


def test_a_job_that_fell_due_long_ago_runs(worker):
    longest = datetime.min.replace(tzinfo=UTC)
    made = [
        shared(jobs.noop, run_after=moment).enqueue()
        for moment in (longest, datetime(1969, 12, 31, tzinfo=UTC))
    ]
    assert [job.result(SOON) for job in made] == [None, None]


@pytest.mark.parametrize("job_type", [jobs.raising, jobs.async_raising], ids=["plain", "async"])
@pytest.mark.parametrize(
    ("kind", "status", "error_class", "reason"),
    [
        ("SystemExit", "DEAD", "SystemExit", "permanent"),
        ("KeyboardInterrupt", "DEAD", "KeyboardInterrupt", "permanent"),
        ("GeneratorExit", "DEAD", "GeneratorExit", "permanent"),
        ("CancelledError", "DEAD", "asyncio.exceptions.CancelledError", "permanent"),
        ("WeirdError", "DEAD", "tests.workerapp.jobs.WeirdError", "exhausted"),
        # Asked whether it may be retried, it raises this.
        ("UndecidedError", "DEAD", "SystemExit", "exhausted"),
        ("long message", "DEAD", "ValueError", "exhausted"),
        ("bad characters", "DEAD", "ValueError", "exhausted"),
        ("RecursionError", "DEAD", "RecursionError", "exhausted"),
        ("MemoryError", "DEAD", "MemoryError", "exhausted"),
        ("PermanentFailure", "DEAD", "PermanentFailure", "permanent"),
        ("RetryJob", "DEAD", "RetryJob", "exhausted"),
        ("CancelJob", "CANCELLED", "CancelJob", None),
    ],
)
def test_whatever_a_job_raises_is_recorded(worker, job_type, kind, status, error_class, reason):
    job = shared(job_type).enqueue(kind)

    (job,) = wait_for_end(job)

    (attempt,) = job.attempts.all()
    assert (job.status, attempt.error_class) == (status, error_class)
    assert len(attempt.message) <= 10_000
    if reason:
        assert job.dead_letter.reason == reason
    else:
        assert job.cancel_reason == "not needed"
        assert attempt.outcome == "cancelled"


@pytest.mark.parametrize("kind", ["SystemExit", "KeyboardInterrupt", "ValueError"])
def test_the_loop_survives_what_a_task_of_a_job_raises(worker, kind):
    assert shared(jobs.async_raising_in_task).enqueue(kind).result(SOON) == "survived"
    assert shared(jobs.async_noop).enqueue().result(SOON) is None


def test_a_result_that_cannot_be_stored_is_a_death_that_says_so(worker):
    (job,) = wait_for_end(shared(jobs.returning_object).enqueue())

    assert (job.status, job.attempt) == (Job.Status.DEAD, 1)
    assert job.dead_letter.reason == "unstorable"
    assert "object" in job.dead_letter.message


def test_a_payload_that_cannot_be_decoded_is_a_death_after_one_attempt(worker):
    job = shared(jobs.echo, run_after=timedelta(hours=1)).enqueue(1)
    with connection.cursor() as cursor:
        cursor.execute("UPDATE durable_job SET args = '[{\"$\": 1}]' WHERE id = %s", [job.pk])
    job = Job.objects.get(pk=job.pk)
    job.run_now()

    (job,) = wait_for_end(job)

    assert (job.status, job.attempt) == (Job.Status.DEAD, 1)
    assert job.dead_letter.reason == "undecodable"


def test_a_retry_waits_for_its_delay_by_the_clock(worker, notes, folder):
    job = shared(jobs.retry_later).enqueue(folder, 1.0)

    job.result(SOON)

    first, second = (note["at"] for note in notes.read("run"))
    assert 1.0 <= second - first < 3.0
    assert [a.message for a in job.attempts.all()] == ["not yet"]


def test_a_rejected_job_is_left_alone_for_twice_its_delay_and_costs_no_attempt(
    worker, notes, folder
):
    job = shared(jobs.reject_once).enqueue(folder, 0.4)

    assert job.result(SOON) == 1

    job = fresh(job)
    first, second = (note["at"] for note in notes.read("run"))
    assert second - first >= 0.8
    assert (job.attempt, job.rejections, job.attempts.count()) == (1, 1, 0)


def test_no_child_of_a_worker_takes_sooner_what_another_has_rejected(start, notes, folder, queue):
    worker = start("--processes", "3", "--concurrency", "1")
    wait_for("the children", lambda: len(worker.children()) == 3)
    job = jobs.reject_once.using(queue_name=queue).enqueue(folder, 1.0)

    assert job.result(SOON) == 1
    first, second = (note["at"] for note in notes.read("run"))
    assert second - first >= 2.0


def test_a_delayed_job_starts_once_its_time_has_come(worker):
    job = shared(jobs.noop, run_after=timedelta(seconds=1)).enqueue()

    job.result(SOON)

    job = fresh(job)
    assert job.run_after <= job.started_at < job.run_after + timedelta(seconds=6)


def test_context_serves_async_code(worker):
    job = shared(jobs.async_context).enqueue()

    assert job.result(SOON) == [1, str(job.pk), True]
    assert fresh(job).progress == {"done": 1, "total": 2, "message": "half"}


def test_progress_shows_while_the_job_runs(worker, notes, folder):
    job = shared(jobs.show_progress).enqueue(folder)
    wait_for("the start", lambda: notes.read("start"))

    assert fresh(job).progress == {"done": 3, "total": 10, "message": "three of ten"}
    notes.let_go()
    job.result(SOON)
    assert fresh(job).progress == {"done": 10, "total": 10, "message": ""}


def test_a_dead_job_is_replayed_as_a_new_one(worker, notes, folder):
    job = shared(jobs.flaky, max_attempts=1, idempotency_key="replayed").enqueue(folder, 1)
    with pytest.raises(JobFailed):
        job.result(SOON)

    again = DeadLetter.objects.get(job=job).replay(args=[folder, 0])

    assert again.result(SOON) == 1
    assert again.pk != job.pk
    assert jobs.flaky.using(idempotency_key="replayed").enqueue(folder).pk == again.pk


def test_jobs_are_claimed_by_priority_then_due_time_then_id(start, notes, folder, queue):
    labels = [("low", -10, 0), ("late", 0, 1), ("first", 0, 2), ("second", 0, 2), ("high", 20, 0)]
    for label, priority, age in labels:
        job = jobs.work.using(queue_name=queue, priority=priority).enqueue(folder, label)
        due = job.run_after - timedelta(minutes=age)
        Job.objects.filter(pk=job.pk).update(run_after=due, due_at=due)
    same = Job.objects.filter(queue_name=queue, args__in=[[folder, "first"], [folder, "second"]])
    moment = same.order_by("pk").first().run_after
    same.update(run_after=moment, due_at=moment)

    start("--concurrency", "1", "--batch").wait()

    order = [note["label"] for note in notes.read("start")]
    assert order == ["high", "first", "second", "late", "low"]


def test_a_retry_with_a_short_delay_starts_a_long_job_once(start, notes, folder, queue):
    for _ in range(2):
        start("--poll-interval", "0.2", "--lease", "2s")
    job = jobs.retry_later.using(queue_name=queue).enqueue(folder, 0.5, 4.0)

    job.result(SOON)

    assert [note["attempt"] for note in notes.read("run")] == [1, 2]
    assert job.attempts.count() == 1


def test_four_workers_start_a_delayed_job_once_and_on_time(start, notes, folder, queue):
    for worker in [start("--lease", "1s") for _ in range(4)]:
        worker.wait_until_ready()
    delayed = jobs.work.using(queue_name=queue, run_after=timedelta(seconds=4))
    job = delayed.enqueue(folder, "one")

    job.result(SOON)

    job = fresh(job)
    assert [note["attempt"] for note in notes.read("start")] == [1]
    assert job.run_after <= job.started_at < job.run_after + timedelta(seconds=2)
    assert (job.attempt, job.attempts.count()) == (1, 0)


def test_a_worker_without_the_code_leaves_the_job_to_one_that_has_it(start, queue):
    ignorant = start("--poll-interval", "0.1", "--lease", "4s", WITH_JOBS="0").wait_until_ready()
    job = jobs.echo.using(queue_name=queue).enqueue("known")
    epoch = fresh(job).epoch

    looked = Job.objects.filter(queue_name=queue).values_list("status", "attempt", "epoch")
    # It beats every second, and polls ten times between.
    since = ignorant.row().heartbeat_at
    wait_for("heartbeats", lambda: ignorant.row().heartbeat_at > since + timedelta(seconds=4))

    assert list(looked) == [(Job.Status.READY, 0, epoch)]
    assert "worker" in fresh(job).blocked_on
    start()
    assert wait_for_status(job, Job.Status.SUCCESSFUL).attempt == 1
    assert ignorant.process.poll() is None


def test_the_log_says_how_long_it_is_until_the_next_attempt(start, queue):
    worker = start()
    backoff = Backoff(initial=timedelta(minutes=5), jitter=0.0)
    job = jobs.raising.using(queue_name=queue, backoff=backoff, max_attempts=2).enqueue(
        "ValueError"
    )

    assert "; next attempt in 5 m" in worker.wait_for_line(f"{job.pk} failed in attempt 1")
    job.cancel()
    worker.stop()
