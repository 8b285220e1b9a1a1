"""Workers that are killed or frozen anywhere in a step: nothing is lost, no write is doubled."""

from __future__ import annotations

import signal
from collections import Counter
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from django_durable.models import Job
from tests.processes.harness import fresh, wait_for, wait_for_end
from tests.workerapp import tasks
from tests.workerapp.notes import Notes

POINTS = ["before_step_record", "record_checkpoint", "after_step_record", "COMMIT", "COMMITTED"]


def kill_in_atomic_steps(
    start: Any, folder: str, queue: str, ledger: Any, kills: int, shared: int
) -> None:
    """Let so many workflows kill their process, each once, beside a second worker.

    `shared` of them die with the worker's child and all that runs there; not many, since the
    supervisor waits longer each time before it replaces a child.
    """
    points = list(islice(cycle(POINTS), kills))
    made = [
        (tasks.pay if number < shared else tasks.pay_isolated)
        .using(queue_name=queue)
        .enqueue(folder, str(number), point)
        for number, point in enumerate(points)
    ]
    workers = [start("--concurrency", "4", "--lease", "2s") for _ in range(2)]
    ended = wait_for_end(*made, patience=60 + 3 * kills)
    for worker in workers:
        worker.stop()
    with workers[0].explained():
        assert [job.status for job in ended] == ["SUCCESSFUL"] * kills
        # All three debits of each, once; and the function saw no other debit before its own.
        causes = Counter(ledger.objects.values_list("cause", flat=True))
        expected = {f"{number}-{debit}" for number in range(kills) for debit in (1, 2, 3)}
        assert causes == dict.fromkeys(expected, 1)
        assert [job.return_value for job in ended] == [[1, 1, 1]] * kills
    died = sum(job.attempts.filter(outcome="lost").exists() for job in ended)
    assert died == kills, f"{died} of {kills} workflows have lost an attempt"


def test_an_atomic_step_happens_exactly_once_wherever_its_worker_is_killed(
    start: Any, folder: str, queue: str, ledger: Any
) -> None:
    kill_in_atomic_steps(start, folder, queue, ledger, kills=20, shared=5)


@pytest.mark.stress
def test_an_atomic_step_happens_exactly_once_in_200_kills(
    start: Any, folder: str, queue: str, ledger: Any
) -> None:
    kill_in_atomic_steps(start, folder, queue, ledger, kills=200, shared=20)


def test_a_plain_step_is_called_again_after_a_kill_between_its_end_and_its_record(
    start: Any, notes: Any, folder: str, queue: str
) -> None:
    job = tasks.call_out.using(queue_name=queue).enqueue(folder, "window")
    worker = start("--lease", "2s")
    (ended,) = wait_for_end(job)
    worker.stop()
    assert ended.return_value == "window"
    assert len(notes.read("called")) == 2
    assert ended.attempt == 2
    assert ended.steps.count() == 1


def is_connected(backend: int) -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid = %s)", [backend])
        found: bool = cursor.fetchone()[0]
    return found


def test_a_worker_frozen_in_an_atomic_step_is_ended_by_the_server_and_another_does_it(
    start: Any, notes: Any, folder: str, queue: str, ledger: Any
) -> None:
    job = tasks.pay_slowly.using(queue_name=queue).enqueue(folder)
    frozen = start("--lease", "2s")
    (inside,) = wait_for("the step", lambda: notes.read("inside"))
    frozen.send_all(signal.SIGSTOP)
    wait_for("the server to end the transaction", lambda: not is_connected(inside["backend"]), 10)
    other = start("--lease", "2s")
    (ended,) = wait_for_end(job)
    assert ended.return_value == 1
    frozen.send_all(signal.SIGCONT)
    notes.let_go("slow")
    frozen.wait_for_line("lost")
    frozen.stop()
    other.stop()
    assert ledger.objects.count() == 1
    # The step before was not done again, and nothing after the lost one was reached.
    assert len(notes.read("before")) == 1
    assert len(notes.read("after")) == 1
    assert fresh(job).attempt == 2


def test_a_worker_frozen_in_a_plain_step_cannot_record_it_after_another_has(
    start: Any, notes: Any, folder: str, queue: str
) -> None:
    job = tasks.step_slowly.using(queue_name=queue).enqueue(folder)
    frozen = start("--lease", "2s")
    wait_for("the step", lambda: notes.read("hold"))
    frozen.send_all(signal.SIGSTOP)
    other = start("--lease", "2s")
    (ended,) = wait_for_end(job)
    notes.let_go("hold")
    frozen.send_all(signal.SIGCONT)
    frozen.wait_for_line("lost")
    frozen.stop()
    other.stop()
    pids = {note["pid"] for note in notes.read("hold")}
    assert len(pids) == 2
    # The other one's values stand, and the frozen one got no further than its step.
    by_other = notes.read("last")[0]["pid"]
    assert ended.return_value == [by_other, by_other]
    assert len(notes.read("last")) == 1
    assert dict(ended.steps.values_list("name", "value")) == {"hold": by_other, "last": by_other}


@pytest.mark.parametrize("workflow", [tasks.hold_between_steps, tasks.ahold_between_steps])
def test_a_worker_frozen_between_steps_calls_none_that_another_has_recorded(
    start: Any, notes: Any, folder: str, queue: str, workflow: Any
) -> None:
    count = 5
    folders = [Path(folder) / str(number) for number in range(count)]
    for own in folders:
        own.mkdir()
    made = workflow.using(queue_name=queue).enqueue_many([([str(own)], {}) for own in folders])
    all_notes = [Notes(own) for own in folders]
    frozen = start("--lease", "2s")
    for each in all_notes:
        wait_for("the wait between the steps", lambda each=each: each.read("between"))
    frozen.send_all(signal.SIGSTOP)
    other = start("--lease", "2s")
    wait_for_end(*made)
    for each in all_notes:
        each.let_go("between")
    frozen.send_all(signal.SIGCONT)
    frozen.wait_for_line("lost")
    frozen.stop()
    other.stop()
    assert [len(each.read("after")) for each in all_notes] == [1] * count


def test_a_worker_whose_claim_lapsed_but_that_nobody_took_records_its_step(
    start: Any, notes: Any, folder: str, queue: str
) -> None:
    job = tasks.step_slowly.using(queue_name=queue).enqueue(folder)
    worker = start("--lease", "2s", "--no-maintenance")
    wait_for("the step", lambda: notes.read("hold"))
    worker.send_all(signal.SIGSTOP)
    wait_for("the lease to lapse", lambda: has_lapsed(job), 10)
    notes.let_go("hold")
    worker.send_all(signal.SIGCONT)
    (ended,) = wait_for_end(job)
    worker.stop()
    assert ended.status == "SUCCESSFUL"
    assert len(notes.read("hold")) == 1


def has_lapsed(job: Job) -> bool:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT lease_until < statement_timestamp() FROM durable_job WHERE id = %s", [job.pk]
        )
        lapsed: bool = cursor.fetchone()[0]
    return lapsed


@pytest.mark.parametrize(
    "point",
    [
        "birth",
        "COMMITTED",
        *(pytest.param(point, marks=pytest.mark.stress) for point in ("share_tree", "COMMIT")),
    ],
)
def test_a_fan_out_whose_creator_is_killed_half_way_is_completed_and_never_doubled(
    start: Any, folder: str, queue: str, point: str
) -> None:
    calls = tasks.fan_out.using(queue_name=queue)
    job = calls.enqueue(folder, 6, point)
    worker = start("--queue-name", f"{queue},default", "--lease", "2s")
    (ended,) = wait_for_end(job)
    worker.stop()
    assert ended.return_value == 2 * sum(number**2 for number in range(6))
    children = Job.all_objects.filter(parent=job)
    assert Counter(children.values_list("status", flat=True)) == {"SUCCESSFUL": 12}
    assert ended.attempts.filter(outcome="lost").count() == 2


@pytest.mark.parametrize("then", ["raise", "lose the answer"])
@pytest.mark.parametrize("kind", ["committed", "async_committed", "isolated_committed"])
def test_what_goes_wrong_after_the_commit_of_an_atomic_step_changes_nothing_of_it(
    start: Any, queue: str, ledger: Any, kind: str, then: str
) -> None:
    job = getattr(tasks, kind).using(queue_name=queue).enqueue(then)
    worker = start("--batch")
    assert worker.wait() == 0
    with worker.explained():
        job = fresh(job)
        assert (job.status, job.attempt, job.return_value) == ("SUCCESSFUL", 1, 1)
        assert ledger.objects.count() == 1
        assert "is recorded; what was raised after that" in worker.log
