"""Processes of isolated attempts: one that can't be had costs none, and none outlives its claim."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest

from django_durable.models import Job
from tests.processes.harness import CHECKOUT, fresh, is_alive, wait_for, wait_for_end
from tests.workerapp import jobs

SOON = 30


def begin(folder, queue) -> None:
    """Let the server of processes start, which takes longer than the timeouts of some tests."""
    jobs.isolated_work.using(queue_name=queue).enqueue(folder, "first").result(SOON)


def outcomes(made) -> set[tuple[str, int, int]]:
    return {(job.status, job.attempt, job.attempts.count()) for job in made}


def test_attempts_for_which_no_process_can_be_had_are_given_back(start, folder, queue):
    worker = start("--concurrency", "30", through='ulimit -n 48; exec "$@"')
    made = [
        jobs.isolated_work.using(queue_name=queue).enqueue(folder, str(number), 0.3)
        for number in range(24)
    ]

    with worker.explained():
        ended = wait_for_end(*made, patience=60)

    assert outcomes(ended) == {(Job.Status.SUCCESSFUL, 1, 0)}, worker.log
    assert worker.log.count("No process for an isolated attempt, which goes back") == 1
    worker.stop()


def test_a_batch_is_not_over_before_what_was_given_back(start, folder, queue):
    made = [
        jobs.isolated_work.using(queue_name=queue).enqueue(folder, str(number), 0.1)
        for number in range(16)
    ]
    worker = start("--batch", "--concurrency", "30", through='ulimit -n 48; exec "$@"')

    assert worker.wait(60) == 0

    assert outcomes(fresh(job) for job in made) == {(Job.Status.SUCCESSFUL, 1, 0)}


@pytest.mark.parametrize("output", [">/dev/full", ">/dev/full 2>&1"])
def test_output_that_nobody_takes_keeps_no_process_from_its_start(start, queue, output):
    worker = start("-v", "3", through=f'exec "$@" {output}')
    jobs.print_half_a_line.using(queue_name=queue).enqueue().result(SOON)

    assert jobs.isolated_async.using(queue_name=queue).enqueue(1).result(SOON)[:2] == [1, 1]
    worker.stop()


def test_a_folder_that_is_gone_keeps_no_process_from_its_start(start, folder, queue):
    # The server finds this package by that, the rest of the project by what the worker tells it.
    worker = start(PYTHONPATH=str(CHECKOUT))
    jobs.change_into_folder_that_goes.using(queue_name=queue).enqueue(folder).result(SOON)

    assert jobs.isolated_async.using(queue_name=queue).enqueue(1).result(SOON)[:2] == [1, 1]
    worker.stop()


def test_a_lower_limit_of_recursion_keeps_no_process_from_its_start(start, queue):
    worker = start()
    jobs.allow_little_recursion.using(queue_name=queue).enqueue().result(SOON)

    assert jobs.isolated_async.using(queue_name=queue).enqueue(1).result(SOON)[:2] == [1, 1]
    worker.stop()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_that_comes_before_the_server_of_processes_is_ready_costs_nothing(
    start, notes, folder, queue, number
):
    worker = start().wait_until_ready()
    jobs.noop.using(queue_name=queue).enqueue().result(SOON)
    before = set(worker.family())
    job = jobs.isolated_hold.using(queue_name=queue, max_attempts=1).enqueue(folder)

    def stop_new() -> bool:
        for pid in set(worker.family()) - before:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        return bool(notes.read("start"))

    wait_for("the start", stop_new)
    notes.let_go()

    assert job.result(SOON) == "job"
    assert (fresh(job).attempt, fresh(job).attempts.count()) == (1, 0)
    worker.stop()


def test_an_attempt_whose_server_of_processes_is_killed_goes_on(start, notes, folder, queue):
    worker = start()
    job = jobs.isolated_hold.using(queue_name=queue, max_attempts=1).enqueue(folder)
    (first,) = wait_for("the start", lambda: notes.read("start"))

    os.kill(parent_of(first["pid"]), signal.SIGKILL)
    other = jobs.isolated_work.using(queue_name=queue).enqueue(folder, "other")
    assert other.result(SOON) == "other"
    notes.let_go()

    assert job.result(SOON) == "job"
    wait_for("its end", lambda: not is_alive(first["pid"]))
    assert outcomes([fresh(job)]) == {(Job.Status.SUCCESSFUL, 1, 0)}
    worker.stop()


@pytest.mark.parametrize("end", ["timeout", "cancel", "worker"])
def test_what_an_attempt_has_detached_ends_with_it(start, notes, folder, queue, end):
    worker = start("--lease", "3s")
    begin(folder, queue)
    timeout = timedelta(seconds=2 if end == "timeout" else 60)
    job = jobs.isolated_detach.using(queue_name=queue, timeout=timeout).enqueue(folder)
    (note,) = wait_for("the start", lambda: notes.read("detached"))
    assert all(is_alive(pid) for pid in note["children"])

    if end == "cancel":
        job.cancel()
    elif end == "worker":
        for pid in (worker.child(), worker.pid):
            os.kill(pid, signal.SIGKILL)

    if end != "worker":
        wait_for_end(job)
    wait_for("their end", lambda: not any(map(is_alive, [note["pid"], *note["children"]])))


def test_an_attempt_that_the_supervisor_times_out_ends_before_the_next(start, notes, folder, queue):
    worker = start("--concurrency", "4")
    begin(folder, queue)
    job = jobs.isolated_tick.using(queue_name=queue, timeout=timedelta(seconds=2)).enqueue(folder)
    wait_for("a tick", lambda: notes.read("tick"))
    jobs.hold_interpreter.using(queue_name=queue).enqueue(folder, 8)

    wait_for("the second attempt", lambda: notes.read("tick", attempt=2))
    threading.Event().wait(1)

    ticks = {number: notes.read("tick", attempt=number) for number in (1, 2)}
    assert max(note["at"] for note in ticks[1]) < min(note["at"] for note in ticks[2])
    assert "recording 1 timeouts in its stead" in worker.log
    assert [attempt.outcome for attempt in fresh(job).attempts.all()][:1] == ["timed_out"]


def test_an_attempt_that_holds_its_interpreter_ends_with_its_child(start, notes, folder, queue):
    worker = start()
    jobs.isolated_overrun.using(queue_name=queue, timeout=None).enqueue(folder)
    (note,) = wait_for("the start", lambda: notes.read("start"))

    os.kill(worker.child(), signal.SIGKILL)

    wait_for("their end", lambda: not any(map(is_alive, [note["pid"], note["child"]])))


@pytest.mark.parametrize("what", ["task", "executor", "thread", "verbs' thread"])
def test_what_async_code_leaves_behind_does_not_keep_its_end_from_the_record(start, queue, what):
    worker = start()
    job = jobs.isolated_leave.using(queue_name=queue).enqueue(what)

    with worker.explained():
        number, pid = job.result(SOON)

    assert number == 7
    assert outcomes([fresh(job)]) == {(Job.Status.SUCCESSFUL, 1, 0)}
    wait_for("its end", lambda: not is_alive(pid))
    worker.stop()


def test_an_attempt_that_ends_just_before_its_timeout_is_recorded_in_time(start, folder, queue):
    worker = start()
    begin(folder, queue)

    pid = jobs.isolated_leave_thread_late.using(queue_name=queue).enqueue().result(SOON)

    assert not is_alive(pid)
    worker.stop()


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.mark.parametrize(
    ("job_type", "then"),
    [
        *((jobs.isolated_fork, then) for then in ("raise", "return")),
        *((jobs.isolated_afork, then) for then in ("raise", "return", "await")),
    ],
)
def test_what_a_copy_comes_to_is_no_outcome(worker, notes, folder, job_type, then):
    job = job_type.using(queue_name="shared").enqueue(folder, then)

    with worker.explained():
        assert job.result(SOON) == "parent"
    assert fresh(job).attempts.count() == 0
    assert not is_alive(notes.read("copy")[0]["pid"])
