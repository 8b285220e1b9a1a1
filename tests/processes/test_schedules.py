"""Schedules and retention in real workers: on time, once, and whoever is killed."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections import Counter
from datetime import timedelta
from io import StringIO

import psycopg
import pytest
from django.core.management import call_command
from django.db import connection
from django.db.models import F
from django.utils import timezone

from django_durable.models import Job, Schedule
from tests.processes.harness import database_url, wait_for, wait_for_end
from tests.workerapp import jobs

SECOND = timedelta(seconds=1)
HOUR = timedelta(hours=1)


@pytest.fixture(autouse=True)
def _no_schedules(transactional_db):
    """Leave no schedule to the workers of the next test."""
    yield
    Schedule.objects.all().delete()


def nominal_times(row):
    return sorted(row.jobs.values_list("scheduled_for", flat=True))


def pass_time(seconds):
    """Let workers work for a while, which is what the test is about."""
    threading.Event().wait(seconds)


def keep_going(start, workers, seconds, rng):
    """Kill a worker at random again and again, and start another in its place."""
    end = time.monotonic() + seconds
    kills = 0
    while time.monotonic() < end:
        pass_time(rng.uniform(0.3, 1.5))
        workers.pop(rng.randrange(len(workers))).send_all(signal.SIGKILL)
        kills += 1
        workers.append(start("--poll-interval", "0.2"))
    return kills


@pytest.mark.parametrize(
    "seconds", [12, pytest.param(60, marks=[pytest.mark.stress, pytest.mark.timeout(300)])]
)
def test_each_tick_of_a_second_has_one_job_whichever_workers_are_killed(start, seconds):
    rng = random.Random(7)  # noqa: S311 - no secret
    workers = [start("--poll-interval", "0.2").wait_until_ready() for _ in range(3)]
    row = jobs.noop.schedule("seconds", every=SECOND, catch_up="all")
    wait_for("the first tick", row.jobs.exists)

    kills = keep_going(start, workers, seconds, rng)
    # Those that are left make up for what was missed while all were starting.
    wait_for("the ticks", lambda: row.jobs.count() >= seconds - 2)
    for worker in workers:
        worker.send_all(signal.SIGKILL)

    assert kills > 3
    times = nominal_times(row)
    assert all(count == 1 for count in Counter(times).values())
    # Each one, since what is missed while all are away is made up for.
    assert times == [times[0] + n * SECOND for n in range(len(times))]


def test_ticks_come_on_time_though_the_poll_is_slow(start):
    start("--poll-interval", "1s").wait_until_ready()
    row = jobs.noop.schedule("seconds", every=SECOND)
    wait_for("some ticks", lambda: row.jobs.count() >= 5)
    late = [job.enqueued_at - job.scheduled_for for job in row.jobs.order_by("pk")[1:]]
    assert max(late) < timedelta(seconds=1)


def test_500_schedules_due_at_once_make_one_job_each_in_three_workers(start):
    for _ in range(3):
        start("--poll-interval", "0.1").wait_until_ready()
    Schedule.objects.bulk_create(
        Schedule(job_name=jobs.noop.name, name=f"tenant-{n}", every=HOUR) for n in range(500)
    )
    made = Job.all_objects.filter(schedule__name__startswith="tenant-")
    wait_for("the jobs", lambda: made.count() >= 500)
    wait_for(
        "all to be moved on",
        lambda: not Schedule.objects.filter(last_run_at__isnull=True).exists(),
    )
    assert made.count() == 500
    assert made.values("schedule").distinct().count() == 500


def test_a_frozen_worker_makes_up_for_what_it_missed_once(start):
    worker = start("--poll-interval", "0.1").wait_until_ready()
    row = jobs.noop.schedule("hourly", every=HOUR)
    wait_for("the first tick", row.jobs.exists)
    worker.send_all(signal.SIGSTOP)
    row.jobs.all().cancel()
    # As if it had been frozen for three hours.
    Schedule.objects.filter(pk=row.pk).update(next_run_at=F("last_run_at") - 3 * HOUR)
    row.jobs.all().delete()
    worker.send_all(signal.SIGCONT)
    wait_for("it to go on", lambda: Schedule.objects.get(pk=row.pk).next_run_at > row.next_run_at)
    (late,) = row.jobs.all()
    assert late.scheduled_for == row.next_run_at


@pytest.mark.parametrize("every", [2, pytest.param(60, marks=pytest.mark.stress)])
def test_a_worker_that_is_frozen_over_ticks_makes_one_late_run(start, every):
    worker = start("--poll-interval", "0.1").wait_until_ready()
    rule = {"cron": "* * * * *"} if every == 60 else {"every": timedelta(seconds=every)}
    row = jobs.noop.schedule("ticking", **rule)
    wait_for("the first tick", row.jobs.exists, patience=90)
    known = row.jobs.count()
    worker.send_all(signal.SIGSTOP)
    pass_time(2.2 * every)
    frozen = nominal_times(row)
    with connection.cursor() as cursor:
        cursor.execute("SELECT statement_timestamp()")
        (thawed,) = cursor.fetchone()
    worker.send_all(signal.SIGCONT)
    wait_for("the late run", lambda: row.jobs.count() > known)

    # Of those that were missed the newest alone runs, and the next ones come on time.
    wait_for("the next one", lambda: row.jobs.count() >= known + 2, patience=90)
    late = min(moment for moment in nominal_times(row) if moment not in frozen)
    assert late - max(frozen) > timedelta(seconds=every)
    # The newest when the worker looked, which may take it a while on a busy machine.
    made = row.jobs.get(scheduled_for=late).enqueued_at
    assert thawed - timedelta(seconds=every) < late <= made < late + timedelta(seconds=every)


@pytest.mark.parametrize(
    "seconds", [3, pytest.param(60, marks=[pytest.mark.stress, pytest.mark.timeout(300)])]
)
def test_schedules_that_are_edited_all_the_time_stop_no_other(start, seconds):
    start("--poll-interval", "0.1").wait_until_ready()
    edited = jobs.noop.schedule("edited", cron="0 0 1 1 *")
    other = jobs.noop.schedule("other", every=SECOND)
    for n in range(seconds * 5):
        Schedule.objects.filter(pk=edited.pk).update(cron=f"{n % 60} {n % 24} * * *")
        pass_time(0.2)
    wait_for("the ticks", lambda: other.jobs.count() >= seconds - 1)
    times = nominal_times(other)
    assert times == [times[0] + n * SECOND for n in range(len(times))]
    last = Schedule.objects.get(pk=edited.pk)
    wait_for(
        "the edit to count",
        lambda: (
            Schedule.objects.get(pk=edited.pk).preview(1)
            == [Schedule.objects.get(pk=edited.pk).next_run_at]
        ),
    )
    assert last.broken == ""


def test_what_is_far_behind_holds_up_no_job_and_no_stop(start, queue):
    """A hundred schedules, of which each has missed each second of a day."""
    worker = start().wait_until_ready()
    Schedule.objects.bulk_create(
        Schedule(
            job_name=jobs.noop.name,
            name=f"behind-{n}",
            every=SECOND,
            catch_up="all",
            next_run_at=timezone.now() - timedelta(days=1),
        )
        for n in range(100)
    )
    made = Job.all_objects.filter(schedule__name__startswith="behind-")
    wait_for("the first of them", made.exists, patience=10)
    for _ in range(5):
        other = jobs.noop.using(queue_name=queue).enqueue()
        wait_for_end(other, patience=5)
    known = made.count()
    wait_for("more of them", lambda: made.count() > known)
    started = time.monotonic()
    worker.process.terminate()
    assert worker.wait() == 0
    assert time.monotonic() - started < 5


def test_schedules_that_somebody_holds_hold_up_no_worker_that_starts(start, queue):
    jobs.noop.schedule("broken", every=HOUR)
    Schedule.objects.update(broken="by what has passed")
    with psycopg.connect(database_url()) as somebody:
        somebody.execute("SELECT FROM durable_schedule FOR UPDATE")
        start("--poll-interval", "0.1").wait_until_ready()
        wait_for_end(jobs.noop.using(queue_name=queue).enqueue(), patience=10)
        assert Schedule.objects.get().broken
        somebody.rollback()
    wait_for("the first tick", Schedule.objects.get().jobs.exists)


@pytest.mark.parametrize("kind", ["slow_key", "looked_up_key", "cancelled_key"])
def test_a_key_that_takes_its_time_keeps_nothing_but_its_schedule(start, queue, kind):
    good = [jobs.noop.schedule(f"good-{n}", every=SECOND, catch_up="all") for n in range(3)]
    worker = start("--poll-interval", "0.1")
    wait_for("the first ticks", lambda: all(row.jobs.exists() for row in good))
    with psycopg.connect(database_url()) as somebody:
        somebody.execute("LOCK TABLE auth_group IN ACCESS EXCLUSIVE MODE")
        kept = [getattr(jobs, kind).schedule(f"kept-{n}", every=HOUR, args=[600]) for n in range(3)]
        why = "CancelledError" if kind == "cancelled_key" else "has not answer"
        shown = Schedule.objects.filter(name__startswith="kept-", broken__contains=why)
        wait_for("why they can't fire", lambda: shown.count() == 3, patience=20)
        known = [row.jobs.count() for row in good]
        for _ in range(3):
            wait_for_end(jobs.noop.using(queue_name=queue).enqueue(), patience=5)
        wait_for(
            "more ticks of the others",
            lambda: all(row.jobs.count() > n + 3 for row, n in zip(good, known, strict=True)),
            patience=15,
        )
        assert not any(row.jobs.exists() for row in kept)
        if kind == "looked_up_key":
            somebody.rollback()
            Schedule.objects.filter(name__startswith="kept-").update(retry_at=timezone.now())
            wait_for("their ticks", lambda: all(row.jobs.exists() for row in kept))
            assert not Schedule.objects.exclude(broken="").exists()
    started = time.monotonic()
    worker.stop()
    assert time.monotonic() - started < 10


def test_a_worker_without_maintenance_fires_and_sweeps_nothing(start, queue):
    gone = jobs.noop.using(queue_name=queue).enqueue()
    start("--no-maintenance", "--poll-interval", "0.1").wait_until_ready()
    row = jobs.noop.schedule("seconds", every=SECOND)
    wait_for_end(gone)
    assert not row.jobs.exists()
    start("--poll-interval", "0.1")
    wait_for("the first tick", row.jobs.exists)


def test_workers_sweep_what_is_kept_no_longer(start, queue):
    made = jobs.noop.using(queue_name=queue).enqueue_many([((), {})] * 400)
    start("--poll-interval", "0.1").wait_until_ready()
    wait_for_end(*made)
    ids = [job.pk for job in made]
    Job.all_objects.filter(pk__in=ids).update(kept_until=F("finished_at"))
    wait_for("the sweep", lambda: not Job.all_objects.filter(pk__in=ids).exists())


def test_batch_workers_fire_what_is_due_before_they_leave(start, queue):
    row = jobs.noop.schedule("hourly", every=HOUR)
    worker = start("--batch")
    assert worker.wait() == 0
    assert row.jobs.count() == 1


def test_a_worker_of_other_job_types_shows_that_nobody_knows_one(start):
    """As after a deployment whose code has the job type no longer."""
    start("--poll-interval", "0.1").wait_until_ready()
    gone = Schedule.objects.create(job_name="code.gone", name="nightly", every=HOUR, declared=True)
    there = jobs.noop.schedule("there", every=HOUR)
    wait_for("the other to run", there.jobs.exists)
    wait_for("the words", lambda: Schedule.objects.get(pk=gone.pk).broken)
    assert Schedule.objects.get(pk=gone.pk).broken == "no live worker knows the job type"
    shown = StringIO()
    call_command("durable", "schedules", stdout=shown)
    assert "no live worker knows the job type" in shown.getvalue()
    assert not gone.jobs.exists()
