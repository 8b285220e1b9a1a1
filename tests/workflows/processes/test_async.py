"""Async workflows in real workers: none keeps another waiting, and none leaves a step behind."""

from __future__ import annotations

from typing import Any

import pytest

from django_durable.models import Job
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
    assert list(ended.steps.values_list("name", flat=True)) == ["first-1", "first-2"]
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
    assert most - base <= 4 + 3 + 2
    worker.stop()
