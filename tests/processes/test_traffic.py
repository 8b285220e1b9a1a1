"""Limits and rates, held by several real workers at once."""

from __future__ import annotations

import threading
from datetime import datetime, timedelta

import pytest

from django_durable.models import Job, Queue, Start
from tests.processes.harness import fresh, status_of, wait_for, wait_for_end, wait_for_status
from tests.workerapp import traffic

SECOND = timedelta(seconds=1)


def starts(queue: str, **fields: object) -> list[datetime]:
    found = Job.all_objects.filter(queue_name=queue, started_at__isnull=False, **fields)
    return sorted(found.values_list("started_at", flat=True))


def assert_rate(moments: list[datetime], limit: int, window: timedelta = SECOND) -> None:
    """No window may hold more; and the rate must be used, give or take a claim."""
    for first, beyond in zip(moments, moments[limit:], strict=False):
        assert beyond - first > window
    windows = -(-len(moments) // limit)
    assert moments[-1] - moments[0] < (windows + 0.3) * window


def most_inside(queue: str) -> int:
    jobs = Job.all_objects.filter(queue_name=queue, status="SUCCESSFUL")
    return max(job.return_value for job in jobs)


def test_a_rate_holds_across_workers_and_is_used(start, queue):
    made = traffic.twenty_a_second.using(queue_name=queue).enqueue_many([((), {})] * 80)
    others = traffic.free.using(queue_name=queue).enqueue_many([(("free", 0.0), {})] * 20)
    for _ in range(2):
        start("--processes", "2", "--concurrency", "4", "--poll-interval", "30s")

    wait_for_end(*made, *others)

    assert_rate(starts(queue, name=traffic.twenty_a_second.name), 20)


def test_a_key_s_rate_is_that_of_all_its_job_types(start, queue):
    made = []
    for kind in (traffic.five_a_second, traffic.five_a_second_too):
        for tenant in ("a", "b"):
            made += kind.using(queue_name=queue).enqueue_many([((tenant,), {})] * 8)
    for _ in range(2):
        start("--processes", "2", "--concurrency", "4", "--poll-interval", "30s")

    wait_for_end(*made)

    for tenant in ("a", "b"):
        assert_rate(starts(queue, concurrency_key=tenant), 5)


def test_a_queue_s_rate_is_changed_while_workers_run(start, queue):
    Queue.objects.create(name=queue, rate_limit="1/d")
    made = traffic.free.using(queue_name=queue).enqueue_many([(("r", 0.0), {})] * 41)
    start("--concurrency", "8")
    wait_for("the first start", lambda: starts(queue))
    assert "rate limited: queue" in made[5].blocked_on

    Queue.objects.filter(name=queue).update(rate_limit="10/s")
    wait_for_end(*made)

    assert_rate(starts(queue)[1:], 10)


def test_retries_count_as_starts(start, queue):
    job = traffic.fail_twice_a_second.using(queue_name=queue).enqueue()
    start("--concurrency", "4")

    (job,) = wait_for_end(job)

    moments = [attempt.started_at for attempt in job.attempts.order_by("number")]
    assert len(moments) == 4
    assert_rate(moments, 2)


def test_a_worker_behind_a_long_rate_does_not_spin(start, queue):
    """Its next start is a day away: it asks no more than an idle one does."""
    traffic.three_a_day.using(queue_name=queue).enqueue_many([((), {})] * 5)
    start("--batch").wait_until_ready()
    wait_for("three starts", lambda: len(starts(queue)) == 3)
    assert Start.objects.filter(budget=f"type:{traffic.three_a_day.name}").count() <= 3
    left = Job.objects.filter(queue_name=queue, status="READY").first()
    assert "rate limited: job type" in left.blocked_on


LIMITED = [(traffic.alone, 1), (traffic.three, 3), (traffic.free, 4)]


@pytest.mark.parametrize(("kind", "limit"), LIMITED)
def test_limits_hold_under_four_processes_of_eight_threads(start, queue, kind, limit):
    if kind is traffic.free:
        Queue.objects.create(name=queue, max_running=limit)
    key = f"'{queue}'"
    # Long enough for a slow machine to start the next before one ends.
    made = kind.using(queue_name=queue).enqueue_many([((key, 0.1), {})] * 40)
    start("--processes", "4", "--concurrency", "8")

    # Five processes start, of which a busy machine takes its time.
    wait_for_end(*made, patience=90)

    assert most_inside(queue) == limit


@pytest.mark.parametrize("key", ['it\'s "quoted" \\ %s', "\N{GRINNING FACE}", "k" * 10_000])
def test_a_key_of_any_text_serves_several_job_types(start, queue, key):
    kinds = (traffic.alone, traffic.alone_too)
    made = [
        job
        for kind in kinds
        for job in kind.using(queue_name=queue).enqueue_many([((key, 0.01), {})] * 8)
    ]
    start("--processes", "2", "--concurrency", "4")

    wait_for_end(*made)

    assert most_inside(queue) == 1


@pytest.mark.stress
@pytest.mark.timeout(600)
def test_twelve_workers_on_three_hundred_jobs_of_one_key(start, queue):
    made = traffic.alone.using(queue_name=queue).enqueue_many([((queue, 0.01), {})] * 300)
    for _ in range(12):
        start("--concurrency", "4")

    wait_for_end(*made, patience=300)

    assert most_inside(queue) == 1


def test_a_killed_holder_frees_its_key_with_its_lease(start, queue):
    first = traffic.alone.using(queue_name=queue).enqueue(queue, 60.0)
    victim = start("--lease", "3s")
    wait_for_status(first, "RUNNING")
    second = traffic.alone_too.using(queue_name=queue).enqueue(queue, 0.0)
    victim.destroy()
    other = start("--lease", "3s", "--job", traffic.alone_too.name).wait_until_ready()

    (second,) = wait_for_end(second)

    assert (second.status, second.attempt, second.return_value) == ("SUCCESSFUL", 1, 1)
    assert fresh(first).status == "READY"
    other.stop()


def test_a_parked_job_keeps_its_key(start, queue, notes, folder):
    kind = traffic.keep_key.using(queue_name=queue)
    first, second = kind.enqueue(folder, "first"), kind.enqueue(folder, "second")
    start("--processes", "2")
    wait_for_status(first, "WAITING")
    assert f"held by concurrency key 'kept' (job {first.pk} keeps it" in second.blocked_on

    first.signal("go")
    wait_for_status(second, "WAITING")
    assert status_of(first) == "SUCCESSFUL"
    second.cancel()
    third = kind.enqueue(folder, "third")
    wait_for_status(third, "WAITING")
    third.signal("go")
    wait_for_end(third)
    assert [note["label"] for note in notes.read("start")] == [
        *("first", "first", "second", "third", "third"),
    ]


def test_what_does_not_start_in_time_is_cancelled(start, queue, folder, notes):
    """By a worker that serves other queues, and though its slots are full."""
    start("--concurrency", "1")
    hold = traffic.free.using(queue_name=queue).enqueue("hold", 4.0)
    wait_for_status(hold, "RUNNING")
    here = traffic.soon_or_never.using(queue_name=queue).enqueue()
    nowhere = traffic.soon_or_never.using(queue_name=f"{queue}-nowhere").enqueue()
    later = traffic.soon_or_never.using(queue_name=queue, run_after=timedelta(seconds=4)).enqueue()
    assert "cancelled if not started by" in here.blocked_on

    (here, nowhere, later) = wait_for_end(here, nowhere, later)

    for job in (here, nowhere):
        assert (job.status, job.cancel_reason, job.attempt) == (
            *("CANCELLED", "not started in time", 0),
        )
        assert job.finished_at - job.enqueued_at < timedelta(seconds=4)
    assert later.status == "SUCCESSFUL"


def test_rejections_between_failures_count_no_attempt(start, queue, folder, notes):
    job = traffic.fail_fail_reject_fail.using(queue_name=queue).enqueue(folder)
    start("--processes", "2")

    (job,) = wait_for_end(job)

    assert (job.status, job.attempt, job.rejections) == ("DEAD", 3, 1)
    assert job.dead_letter.attempt_count == 3
    assert [note["attempt"] for note in notes.read("run")] == [1, 2, 3, 3]


def test_two_workers_that_reject_do_not_spin(start, queue):
    job = traffic.nobody_accepts.using(queue_name=queue).enqueue()
    for _ in range(2):
        start().wait_until_ready()
    threading.Event().wait(5)
    assert 2 <= fresh(job).rejections < 15
