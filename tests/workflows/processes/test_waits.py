"""Waits in real workers: signals that come near the wait, sleeps in one slot, and trees."""

from __future__ import annotations

import random
import signal
import threading
from datetime import timedelta
from typing import Any

import pytest
from django.db import connections

from django_durable.models import Job
from tests.contract.committed import python_on_the_test_database
from tests.processes.harness import (
    fresh,
    wait_for,
    wait_for_end,
    wait_for_status,
)
from tests.workerapp import jobs, tasks

# A process of its own, which reads "pause id" and sends the signal after the pause.
SENDER = """
import sys, time, django
django.setup()
from django_durable.models import Job
for line in sys.stdin:
    pause, job = line.split()
    time.sleep(float(pause))
    assert Job(pk=job).signal("approval", job)
"""


def send_near_waits(start: Any, folder: str, queue: str, rounds: int, *, within: timedelta) -> None:
    """Send each of so many workflows a signal about when it begins to wait for it."""
    worker = start("--concurrency", "4", "--poll-interval", "10s").wait_until_ready()
    wait_for("the children", worker.children)
    chance = random.Random(7)  # noqa: S311 - no secret
    made = []
    with python_on_the_test_database(SENDER) as sender:
        assert sender.stdin is not None
        for number in range(rounds):
            # Most are just being claimed, run or parked when their signal comes.
            job = tasks.approve.using(queue_name=queue).enqueue(folder, chance.uniform(0, 0.03))
            made.append(job)
            sender.stdin.write(f"{chance.uniform(0, 0.05)} {job.pk}\n")
            sender.stdin.flush()
            if number % 10 == 9:
                # No more than the worker can follow: the signals shall come near the waits.
                wait_for_end(*made[-10:])
        sender.stdin.close()
        assert sender.wait(60) == 0
    ended = wait_for_end(*made)
    worker.stop()
    late = []
    for job in ended:
        answer = job.return_value
        assert answer["payload"] == str(job.pk)
        both = max(answer["before"], job.signals.get().received_at)
        late.append(answer["after"] - both)
    assert max(late) < within, sorted(late)[-5:]
    assert sorted(late)[len(late) // 2] < timedelta(seconds=1)


def test_a_signal_sent_near_the_wait_from_another_process_is_never_lost(
    start: Any, folder: str, queue: str
) -> None:
    # The rest of the suite may load the machine. The poll would take up to ten.
    send_near_waits(start, folder, queue, 200, within=timedelta(seconds=5))


@pytest.mark.stress
def test_2000_signals_sent_near_the_wait_are_never_lost(
    start: Any, folder: str, queue: str
) -> None:
    send_near_waits(start, folder, queue, 2000, within=timedelta(seconds=1))


def test_a_deadline_counts_on_while_workers_are_restarted(
    start: Any, folder: str, queue: str
) -> None:
    job = tasks.approve.using(queue_name=queue).enqueue(folder, 0.0, 3.0)
    first = start()
    wait_for_status(job, Job.Status.WAITING)
    first.send_all(signal.SIGKILL)
    second = start()
    (ended,) = wait_for_end(job)
    second.stop()
    answer = ended.return_value
    assert answer["payload"] == "SignalTimeout"
    assert timedelta(seconds=3) <= answer["after"] - answer["before"] < timedelta(seconds=20)
    assert ended.attempt == 1


def sleep_many(start: Any, queue: str, count: int, seconds: float) -> None:
    sleepers = tasks.nap.using(queue_name=queue).enqueue_many([((seconds,), {})] * count)
    worker = start("--concurrency", "1")
    ids = [job.pk for job in sleepers]
    asleep = Job.objects.filter(pk__in=ids, status="WAITING")
    wait_for("all to sleep", lambda: asleep.count() == count, 120)
    quick = jobs.echo.using(queue_name=queue).enqueue("quick")
    assert quick.result(timeout=10) == "quick"
    assert asleep.count() == count
    ended = wait_for_end(*sleepers, patience=120 + seconds)
    worker.stop()
    assert {job.status for job in ended} == {"SUCCESSFUL"}
    assert min(job.return_value for job in ended) >= seconds
    assert {job.attempt for job in ended} == {1}


def test_one_slot_runs_100_sleeping_workflows_and_stays_free(start: Any, queue: str) -> None:
    sleep_many(start, queue, 100, 8)


@pytest.mark.stress
def test_one_slot_runs_1000_sleeping_workflows_and_stays_free(start: Any, queue: str) -> None:
    sleep_many(start, queue, 1000, 90)


def test_one_slot_finishes_a_tree_of_three_levels(start: Any, queue: str) -> None:
    job = tasks.tree.using(queue_name=queue).enqueue(4, 5)
    worker = start("--queue-name", f"{queue},default", "--concurrency", "1")
    (ended,) = wait_for_end(job)
    worker.stop()
    assert ended.return_value == sum(number**2 for number in range(20))
    assert {job.attempt for job in ended.tree()} == {1}


def test_a_child_that_takes_longer_than_its_parents_timeout_does_not_end_it(
    start: Any, queue: str
) -> None:
    job = tasks.outlive.using(queue_name=queue).enqueue(4.0)
    worker = start("--queue-name", f"{queue},default")
    (ended,) = wait_for_end(job)
    worker.stop()
    assert ended.return_value == 1
    assert ended.attempt == 1


def _approve(job: Job) -> None:
    try:
        job.signal("approval", 1)
    finally:
        connections.close_all()


def test_two_workers_that_are_woken_for_one_parent_run_it_once(
    start: Any, folder: str, queue: str
) -> None:
    made = [tasks.approve.using(queue_name=queue).enqueue(folder) for _ in range(20)]
    workers = [start("--concurrency", "2") for _ in range(2)]
    for job in made:
        wait_for_status(job, Job.Status.WAITING)
    threads = [threading.Thread(target=_approve, args=(job,)) for job in made]
    for thread in threads:
        thread.start()
    ended = wait_for_end(*made)
    for worker in workers:
        worker.stop()
    for thread in threads:
        thread.join()
    assert [job.return_value["payload"] for job in ended] == [1] * 20
    assert {(job.attempt, job.attempts.count()) for job in ended} == {(1, 0)}


def test_an_async_workflow_uses_every_verb_in_a_real_worker(
    start: Any, notes: Any, folder: str, queue: str, ledger: Any
) -> None:
    job = tasks.async_flow.using(queue_name=queue).enqueue(folder)
    worker = start("--queue-name", f"{queue},default")
    wait_for("the wait for the signal", lambda: fresh(job).waits_for == "word")
    assert job.signal("word", "given") is True
    (ended,) = wait_for_end(job)
    worker.stop()
    assert ended.return_value == [[0, 1, 2, 3, 4], 1, 9, "given", 2]
    assert len(notes.read("async step")) == 5
    assert ledger.objects.count() == 1
    assert ended.attempt == 1


def test_a_workflow_in_a_process_of_its_own_parks_and_goes_on(
    start: Any, folder: str, queue: str
) -> None:
    job = tasks.approve_isolated.using(queue_name=queue).enqueue(folder)
    worker = start()
    wait_for_status(job, Job.Status.WAITING)
    job.signal("approval", 5)
    (ended,) = wait_for_end(job)
    worker.stop()
    assert ended.return_value["payload"] == 5
    assert ended.attempt == 1


def test_cancel_of_a_running_workflow_is_learned_at_its_next_verb(
    start: Any, notes: Any, folder: str, queue: str
) -> None:
    job = tasks.step_slowly.using(queue_name=queue).enqueue(folder)
    worker = start()
    wait_for("the step", lambda: notes.read("hold"))
    assert job.cancel("enough") == "requested"
    notes.let_go("hold")
    (ended,) = wait_for_end(job)
    worker.stop()
    assert (ended.status, ended.cancel_reason) == ("CANCELLED", "enough")
    assert not notes.read("last")
    # What the step had earned by then is kept.
    assert list(ended.steps.values_list("name", flat=True)) == ["hold"]
