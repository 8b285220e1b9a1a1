"""A child that is killed between two statements: nothing is lost, nothing is recorded twice."""

from __future__ import annotations

import signal
import time
from collections import Counter

import pytest

from django_durable import faults
from django_durable.models import DeadLetter, Job
from tests.processes.harness import wait_for, wait_for_end
from tests.workerapp import jobs, tasks

# The points of a run, and the statements that a child makes while it runs these jobs.
POINTS = [
    "claim",
    "after_claim",
    "before_record",
    "after_record",
    "COMMIT in recorder",
    "COMMITTED in recorder",
    "record_success",
    "record_failure",
    "give_back",
    "cancel_claimed",
    "lock_lost",
    "settle_hooks",
]
MORE_POINTS = [
    "find_lanes",
    "claim:2",
    "claim:4",
    "lock_with_waiters",
    "record_failure:2",
    "record_failure:3",
    "lock_requested",
    "take_hooks",
    "take_hooks:3",
    "before_record:3",
    "after_record:3",
    "record_success:2",
    "COMMIT in recorder:3",
    "COMMITTED in recorder:3",
]


@pytest.mark.parametrize(
    "point", [*POINTS, *(pytest.param(point, marks=pytest.mark.stress) for point in MORE_POINTS)]
)
def test_a_child_killed_at_a_statement_loses_and_doubles_nothing(
    start, notes, folder, queue, point
):
    work = jobs.work.using(queue_name=queue).enqueue(folder, "work")
    flaky = jobs.flaky.using(queue_name=queue, max_attempts=5).enqueue(folder, 1)
    doomed = jobs.flaky.using(queue_name=queue, max_attempts=2).enqueue(folder)
    rejected = jobs.reject_once.using(queue_name=queue).enqueue(folder, 0.1)
    cancel_itself = jobs.cancel_itself.using(queue_name=queue)
    cancelled = [cancel_itself.enqueue(then) for then in ("raise", "reject")]
    made = [work, flaky, doomed, rejected, *cancelled]
    faulty = start("--lease", "2s", DURABLE_FAULT=point)

    faulty.wait_for_line("was killed by signal 9")
    faulty.send_all(signal.SIGKILL)
    # It rescues what it finds and runs all to the end.
    healthy = start("--lease", "2s").wait_until_ready()
    ended = wait_for_end(*made)
    wait_for(
        "the hook",
        lambda: len(notes.read("hook")) >= DeadLetter.objects.filter(job__in=made).count(),
    )
    healthy.stop()

    work, flaky, doomed, rejected, *cancelled = ended
    with healthy.explained():
        assert work.status == Job.Status.SUCCESSFUL
        assert flaky.status == Job.Status.SUCCESSFUL
        assert doomed.status == Job.Status.DEAD
        assert rejected.status == Job.Status.SUCCESSFUL
        assert [job.status for job in cancelled] == [Job.Status.CANCELLED] * 2
        for job in ended:
            check_books(job)
    # Each attempt of the books is a run, and there is no run without one.
    runs = Counter(note["job"] for note in notes.read("run") if "job" in note)
    for job in (flaky, doomed):
        lost_before_start = job.attempts.filter(outcome="lost").count()
        assert job.attempt - lost_before_start <= runs[str(job.pk)] <= job.attempt
    if not point.startswith("settle_hooks"):
        assert len(notes.read("hook", job=str(doomed.pk))) == 1
    else:
        # At least once: the hook ran, and the note of it was lost.
        assert len(notes.read("hook", job=str(doomed.pk))) >= 1


@pytest.mark.parametrize("point", faults.POINTS)
def test_a_workflow_killed_at_a_point_does_again_only_what_was_not_recorded(
    start, notes, folder, queue, point
):
    job = tasks.through_every_point.using(queue_name=queue).enqueue(folder)
    faulty = start("--lease", "2s", DURABLE_FAULT=point)
    faulty.wait_for_line("was killed by signal 9")
    faulty.send_all(signal.SIGKILL)
    healthy = start("--lease", "2s").wait_until_ready()
    (ended,) = wait_for_end(job)
    healthy.stop()

    lost = ended.attempts.filter(outcome="lost").count()
    assert (ended.status, ended.return_value) == (Job.Status.SUCCESSFUL, 3)
    assert (lost > 0) == (point != "after_record")
    assert ended.attempt == 1 + lost
    # The window of a plain step lies between its function's end and its record.
    assert len(notes.read("called")) == 1 + (lost if point == "before_step_record" else 0)
    assert history(ended) == ["step", "sleep"]


# Statements inside of transactions with locks: of a run's, and of the recorder's.
HELD = ["start_awaits", "park", "end_awaits"]


@pytest.mark.parametrize("point", HELD)
def test_a_worker_frozen_in_a_transaction_holds_nobody_up_for_longer_than_its_lease(
    start, notes, folder, queue, point
):
    tree = tasks.tree.using(queue_name=queue, max_attempts=3).enqueue(2, 2)
    queues = ("--queue-name", f"{queue},default", "--lease", "2s")
    frozen = start(*queues, FREEZE_AT=point, FREEZE_NOTES=folder)
    wait_for("the freeze", lambda: notes.read("frozen"))
    other = start(*queues).wait_until_ready()
    since = time.monotonic()
    (ended,) = wait_for_end(tree, patience=30)
    took = time.monotonic() - since
    frozen.send_all(signal.SIGCONT)
    frozen.stop()
    other.stop()
    assert (ended.status, ended.return_value) == (Job.Status.SUCCESSFUL, 0 + 1 + 4 + 9)
    assert took < 15


def history(job: Job) -> list[str]:
    return list(job.steps.order_by("ordinal").values_list("name", flat=True))


def check_books(job: Job) -> None:
    """See that the row, its attempts and its dead letter tell one story."""
    attempts = list(job.attempts.all())
    numbers = [attempt.number for attempt in attempts]
    assert job.finished_at is not None
    assert job.attempt <= job.max_attempts
    if job.status == Job.Status.SUCCESSFUL:
        # The last one succeeded and has no row; all others have one each.
        assert numbers == list(range(1, job.attempt))
    elif job.status == Job.Status.DEAD:
        assert numbers == list(range(1, job.attempt + 1))
        assert job.dead_letter.attempt_count == job.attempt
        assert attempts[-1].error_class == job.dead_letter.error_class
    assert DeadLetter.objects.filter(job=job).count() == (job.status == Job.Status.DEAD)
    assert (job.lease_until, job.claimer) == (None, None)
