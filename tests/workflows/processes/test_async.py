"""Async workflows in real workers: none keeps another waiting, and none leaves a step behind."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from django.db import connection, transaction

from django_durable.models import Attempt, Job
from tests.processes.harness import sessions, wait_for, wait_for_end
from tests.workerapp import tasks
from tests.workflows.driving import fresh

pytestmark = pytest.mark.django_db(transaction=True)
SOON = 20


def test_a_plain_step_that_takes_long_holds_up_no_other_async_workflow(
    start: Any, notes: Any, folder: str, queue: str
) -> None:
    held = [tasks.hold_in_a_thread.using(queue_name=queue).enqueue(folder, x) for x in "ab"]
    worker = start("--concurrency", "4")
    wait_for("both steps", lambda: len(notes.read("hold")) == 2)
    quick = tasks.async_quick.using(queue_name=queue).enqueue()
    assert quick.result(SOON) == 3
    assert not notes.read("held")
    notes.let_go()
    assert {job.return_value for job in wait_for_end(*held)} == {"a", "b"}
    worker.stop()


@pytest.mark.parametrize("wait", ["sleep", "signal", "child", "retry"])
def test_a_run_does_not_park_while_a_step_of_it_is_under_way(
    start: Any, notes: Any, folder: str, queue: str, wait: str
) -> None:
    job = tasks.wait_beside_a_step.using(queue_name=queue).enqueue(folder, wait)
    workers = [start("--queue-name", f"{queue},default", "--concurrency", "2") for _ in range(2)]
    wait_for("the step", lambda: notes.read("long"))
    if wait == "signal":
        job.signal("word", "given")
    # Each wait is over, or would have parked, by the time the step ends.
    wait_for("the wait", lambda: notes.now() - notes.read("long")[0]["at"] > 2.5)
    assert fresh(job).status == "RUNNING"
    notes.let_go("long")
    (ended,) = wait_for_end(job)
    for worker in workers:
        worker.stop()
    answers = {"sleep": None, "signal": "given", "child": 9, "retry": "insisted"}
    assert ended.return_value == ["long", answers[wait]]
    assert len(notes.read("long")) == 1
    assert ended.attempt == 1


def test_a_run_that_is_alone_again_parks(start: Any, notes: Any, folder: str, queue: str) -> None:
    job = tasks.wait_beside_a_step.using(queue_name=queue).enqueue(folder, "signal")
    worker = start()
    wait_for("the step", lambda: notes.read("long"))
    notes.let_go("long")
    wait_for("the park", lambda: fresh(job).status == "WAITING")
    assert job.signal("word", "given") is True
    (ended,) = wait_for_end(job)
    worker.stop()
    assert (ended.return_value, len(notes.read("long"))) == (["long", "given"], 1)


def test_steps_that_a_failed_run_leaves_behind_are_ended_before_the_next_one(
    start: Any, notes: Any, folder: str, queue: str
) -> None:
    job = tasks.wait_beside_a_step.using(queue_name=queue).enqueue(folder, "fail")
    worker = start()
    wait_for("the second try", lambda: notes.read("long", attempt=2))
    (first_end,) = notes.read("long ended", attempt=1)
    assert first_end["at"] < notes.read("long", attempt=2)[0]["at"]
    notes.let_go("long")
    assert wait_for_end(job)[0].return_value == ["long", None]
    worker.stop()


def test_a_cancel_ends_the_step_beside_a_wait(
    start: Any, notes: Any, folder: str, queue: str
) -> None:
    job = tasks.wait_beside_a_step.using(queue_name=queue).enqueue(folder, "signal")
    worker = start()
    wait_for("the step", lambda: notes.read("long"))
    assert Job.objects.get(pk=job.pk).cancel() == "requested"
    (ended,) = wait_for_end(job)
    assert ended.status == "CANCELLED"
    assert notes.read("long ended")
    worker.stop()


def test_a_branch_that_a_failed_run_leaves_behind_comes_to_no_other_step(
    start: Any, notes: Any, folder: str, queue: str
) -> None:
    job = tasks.fail_between_steps.using(queue_name=queue).enqueue(folder)
    worker = start()
    (ended,) = wait_for_end(job)
    wait_for("the branch to go on", lambda: notes.now() - notes.read("charge")[-1]["at"] > 1.5)
    worker.stop()
    assert ended.status == "DEAD"
    assert list(ended.steps.order_by("id").values_list("name", flat=True)) == ["first-1", "first-2"]
    assert len(notes.read("charge")) == 2


def test_a_wait_in_a_branch_parks_the_whole_run(start: Any, queue: str) -> None:
    job = tasks.wait_in_a_branch.using(queue_name=queue).enqueue()
    worker = start("--concurrency", "1")
    wait_for("the park", lambda: fresh(job).status == "WAITING")
    quick = tasks.async_quick.using(queue_name=queue).enqueue()
    assert quick.result(SOON) == 3
    assert job.result(SOON) == "done"
    worker.stop()


def test_a_cancel_while_the_thread_of_a_run_is_left_busy_loses_no_end(
    start: Any, notes: Any, folder: str, queue: str
) -> None:
    job = tasks.leave_a_thread_busy.using(queue_name=queue).enqueue(folder)
    worker = start("--concurrency", "1")
    wait_for("the thread", lambda: notes.read("hold"))
    wait_for("the return", lambda: notes.now() - notes.read("hold")[0]["at"] > 0.5)
    for _ in range(3):
        Job.objects.get(pk=job.pk).cancel()
    notes.let_go("left")
    (ended,) = wait_for_end(job)
    assert ended.status == "SUCCESSFUL"
    assert tasks.async_quick.using(queue_name=queue).enqueue().result(SOON) == 3
    worker.stop()


def test_what_failed_runs_leave_behind_shares_one_connection(start: Any, queue: str) -> None:
    base = sessions()
    worker = start("--concurrency", "4")
    made = tasks.leave_a_reader.using(queue_name=queue).enqueue_many([((), {})] * 40)
    living = Job.objects.in_queue(queue).exclude(status="DEAD")
    most = 0
    while living.exists():
        most = max(most, sessions())
    assert len(wait_for_end(*made)) == 40
    # Those of four runs that are at it, and one for all that is left behind.
    assert most - base <= 4 + 3 + 2 + 1
    worker.stop()


@pytest.mark.parametrize("wait", ["sleep", "signal", "child"])
@pytest.mark.parametrize("how", ["failure", "group", "often", "cancel", "race", "return"])
def test_the_end_of_a_run_waits_for_no_wait_of_a_branch(
    start: Any, queue: str, wait: str, how: str
) -> None:
    worker = start("--concurrency", "4")
    often = tasks.fail_after_many_steps_beside_a_wait
    call = (often if how == "often" else tasks.end_beside_a_wait).using(queue_name=queue)
    made = call.enqueue_many([((wait, how), {})] * 20)
    ended = wait_for_end(*made)
    worker.stop()
    dies = how in ("failure", "group", "often")
    expected = {
        "cancel": ("CANCELLED", None),
        "race": ("SUCCESSFUL", ["first"]),
        "return": ("SUCCESSFUL", ["first", False]),
    }.get(how, ("DEAD", None))
    assert [(job.status, job.return_value) for job in ended] == [expected] * 20
    reasons = {job.dead_letter.reason for job in ended if job.dead_letter is not None}
    assert reasons == ({"permanent"} if dies else set())
    assert "lost its claim" not in worker.log


def test_no_park_begins_beside_the_next_try_of_a_step(
    start: Any, notes: Any, folder: str, queue: str
) -> None:
    worker = start("--concurrency", "8")
    call = tasks.retry_beside_a_wait.using(queue_name=queue)
    made = call.enqueue_many([((folder, str(number)), {}) for number in range(60)])
    assert {job.status for job in wait_for_end(*made)} == {"SUCCESSFUL"}
    worker.stop()
    assert len(notes.read("failed")) == len(notes.read("effect")) == 60


def test_a_cancel_about_when_runs_park_loses_none_of_them(start: Any, queue: str) -> None:
    worker = start("--concurrency", "20", "--lease", "30").wait_until_ready()
    for pause in (0.0, 0.03, 0.06):
        made = tasks.sleep_long.using(queue_name=queue).enqueue_many([((), {})] * 60)
        threading.Event().wait(pause)
        jobs = Job.objects.filter(pk__in=[job.pk for job in made])
        jobs.cancel("enough")
        # Well before a lease that nobody renews would be over.
        wait_for("the ends", lambda jobs=jobs: not jobs.exclude(status="CANCELLED").exists(), 10)
        assert not Attempt.objects.filter(job__in=jobs, outcome="lost").exists()
    worker.stop()


@pytest.mark.parametrize(("how", "end"), [("return", "SUCCESSFUL"), ("failure", "DEAD")])
def test_an_end_while_a_branch_is_about_to_park_is_recorded(
    start: Any, notes: Any, folder: str, queue: str, how: str, end: str
) -> None:
    job = tasks.end_beside_a_locked_park.using(queue_name=queue).enqueue(folder, how)
    worker = start("--concurrency", "2")
    (note,) = wait_for("the child", lambda: notes.read("child"))
    with transaction.atomic():
        child = Job.objects.select_for_update().get(pk=note["job"])
        notes.let_go("park")
        wait_for("the park", is_somebody_blocked)
        notes.let_go("end")
        threading.Event().wait(0.3)
        child.cancel("not needed")
    (ended,) = wait_for_end(job)
    worker.stop()
    assert ended.status == end
    assert [attempt.outcome for attempt in ended.attempts.all()] == ["failed"] * (end == "DEAD")


def is_somebody_blocked() -> bool:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database()"
            " AND wait_event_type = 'Lock')"
        )
        return bool(cursor.fetchone()[0])
