"""The end of a worker: SIGTERM, the shutdown timeout, a second signal, an operator's drain."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from datetime import timedelta
from pathlib import Path

import pytest

from django_durable.models import Job, Worker
from tests.processes.harness import fresh, is_alive, status_of, wait_for, wait_for_end
from tests.workerapp import jobs

SOON = 20


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_lets_what_runs_finish_and_claims_nothing_more(start, notes, folder, queue, number):
    worker = start("--concurrency", "2", "--lease", "2s")
    running = [
        jobs.hold.using(queue_name=queue).enqueue(folder, "plain"),
        jobs.async_hold.using(queue_name=queue).enqueue(folder, "loop"),
    ]
    waiting = jobs.noop.using(queue_name=queue).enqueue()
    wait_for("the starts", lambda: len(notes.read("start")) == 2)
    row = worker.row()

    worker.send(number)
    worker.wait_for_line("Stopping")
    # Renewed while they drain, over more than a lease, and shown as draining.
    before = [fresh(job).lease_until for job in running]
    wait_for(
        "the renewals",
        lambda: all(
            (fresh(job).lease_until - lease).total_seconds() > 2.5
            for job, lease in zip(running, before, strict=True)
        ),
    )
    assert Worker.objects.get(pk=row.pk).draining
    notes.let_go()

    assert worker.wait() == 0
    assert not worker.family()
    assert [status_of(job) for job in running] == [Job.Status.SUCCESSFUL] * 2
    assert (status_of(waiting), fresh(waiting).attempt) == (Job.Status.READY, 0)
    assert not Worker.objects.filter(pk=row.pk).exists()


def test_a_stop_of_the_whole_group_drains_too(start, notes, folder, queue):
    worker = start()
    job = jobs.hold.using(queue_name=queue).enqueue(folder)
    wait_for("the start", lambda: notes.read("start"))

    worker.send_all(signal.SIGTERM)
    worker.wait_for_line("Stopping")
    notes.let_go()

    assert worker.wait() == 0
    assert (status_of(job), fresh(job).attempt) == (Job.Status.SUCCESSFUL, 1)


@pytest.mark.parametrize("how", ["timeout", "second signal"])
def test_what_does_not_finish_is_given_back_at_once_and_uncounted(start, notes, folder, queue, how):
    worker = start("--shutdown-timeout", "1s" if how == "timeout" else "60s", "--lease", "60s")
    first = jobs.hold.using(queue_name=queue).enqueue(folder, "first")
    retried = jobs.fail_then_hold.using(queue_name=queue).enqueue(folder)
    on_loop = jobs.async_hold.using(queue_name=queue).enqueue(folder, "loop")
    made = (first, retried, on_loop)
    wait_for("the starts", lambda: len(notes.read("start")) == 3)
    places = [fresh(job).run_after for job in made]

    worker.send(signal.SIGTERM)
    worker.wait_for_line("Stopping")
    if how == "second signal":
        worker.send(signal.SIGTERM)
    assert worker.wait(20) == 0

    assert not worker.family()
    for job, place in zip(made, places, strict=True):
        assert status_of(job) == Job.Status.READY
        assert fresh(job).run_after == place
    assert (fresh(first).attempt, fresh(first).attempts.count()) == (0, 0)
    assert fresh(first).started_at is None
    assert (fresh(retried).attempt, fresh(retried).attempts.count()) == (1, 1)
    # And run to their end by the next worker.
    notes.let_go()
    start()
    assert first.result(SOON) == "first"
    assert retried.result(SOON) == 2
    assert fresh(first).attempt == 1


def test_a_cancel_works_during_the_drain(start, notes, folder, queue):
    worker = start()
    plain = jobs.check_until_cancelled.using(queue_name=queue).enqueue(folder)
    on_loop = jobs.async_hold.using(queue_name=queue).enqueue(folder)
    wait_for("the starts", lambda: len(notes.read("start")) == 2)
    worker.send(signal.SIGTERM)
    worker.wait_for_line("Stopping")

    assert {job.cancel("no more") for job in (plain, on_loop)} == {"requested"}

    assert worker.wait() == 0
    assert [status_of(job) for job in (plain, on_loop)] == [Job.Status.CANCELLED] * 2


def test_a_cancelled_job_that_is_given_back_ends_cancelled(start, notes, folder, queue):
    worker = start("--shutdown-timeout", "60s")
    job = jobs.hold.using(queue_name=queue).enqueue(folder)
    wait_for("the start", lambda: notes.read("start"))
    assert job.cancel("given up") == "requested"

    worker.send(signal.SIGTERM)
    worker.wait_for_line("Stopping")
    worker.send(signal.SIGTERM)

    assert worker.wait() == 0
    job = fresh(job)
    assert (job.status, job.cancel_reason) == (Job.Status.CANCELLED, "given up")


def test_an_operator_drains_a_worker_by_its_row(start, notes, folder, queue):
    worker = start("--lease", "4s")
    job = jobs.hold.using(queue_name=queue).enqueue(folder)
    wait_for("the start", lambda: notes.read("start"))

    Worker.objects.filter(pk=worker.row().pk).update(draining=True)
    worker.wait_for_line("Stopping")
    assert worker.process.poll() is None
    notes.let_go()

    assert worker.wait() == 0
    assert status_of(job) == Job.Status.SUCCESSFUL


def test_a_stop_right_after_the_start_leaves_nothing(start, queue):
    worker = start()
    job = jobs.noop.using(queue_name=queue).enqueue()
    wait_for("a child", worker.children)

    worker.send(signal.SIGTERM)

    assert worker.wait() == 0
    assert not worker.family()
    assert status_of(job) in (Job.Status.READY, Job.Status.SUCCESSFUL)


def test_a_worker_whose_child_is_frozen_stops_at_the_timeout(start, notes, folder, queue):
    worker = start("--shutdown-timeout", "1s")
    job = jobs.hold.using(queue_name=queue).enqueue(folder)
    (note,) = wait_for("the start", lambda: notes.read("start"))
    os.kill(note["pid"], signal.SIGSTOP)
    asked_at = time.monotonic()

    worker.send(signal.SIGTERM)

    assert worker.wait() == 0
    assert time.monotonic() - asked_at < 10
    assert not is_alive(note["pid"])
    assert (status_of(job), fresh(job).attempt) == (Job.Status.READY, 0)


def test_a_child_that_does_not_answer_is_not_replaced_during_the_drain(start, notes, folder, queue):
    worker = start("--shutdown-timeout", "60s")
    call = jobs.hold.using(queue_name=queue, timeout=timedelta(seconds=2), max_attempts=1)
    job = call.enqueue(folder)
    (note,) = wait_for("the start", lambda: notes.read("start"))
    os.kill(note["pid"], signal.SIGSTOP)

    worker.send(signal.SIGTERM)
    worker.wait_for_line("Stopping")
    waiting = jobs.noop.using(queue_name=queue).enqueue()

    # What it ran is recorded in its stead, and then there is nothing left to wait for.
    assert worker.wait() == 0
    assert not worker.family()
    attempt = fresh(job).attempts.get()
    assert (status_of(job), attempt.outcome) == (Job.Status.DEAD, "timed_out")
    assert (status_of(waiting), fresh(waiting).attempt) == (Job.Status.READY, 0)
    assert "was killed by signal" not in worker.log


def test_a_child_that_is_due_to_be_replaced_is_not_replaced_during_the_drain(
    start, notes, folder, queue
):
    # Each child asks for its successor as soon as it has come up.
    worker = start("--max-seconds", "0.001")
    jobs.hold.using(queue_name=queue).enqueue(folder)
    (note,) = wait_for("the start", lambda: notes.read("start"))

    worker.send(signal.SIGTERM)
    worker.wait_for_line("Stopping")
    wait_for("the end of the others", lambda: worker.children() == [note["pid"]])
    notes.let_go()

    assert worker.wait() == 0
    assert "Replacing" not in worker.log.partition("Stopping")[2]


def test_a_child_that_dies_during_the_drain_is_not_replaced(start, notes, folder, queue):
    worker = start("--concurrency", "1", "--shutdown-timeout", "60s")
    job = jobs.hold.using(queue_name=queue).enqueue(folder)
    (note,) = wait_for("the start", lambda: notes.read("start"))
    worker.send(signal.SIGTERM)
    worker.wait_for_line("Stopping")

    os.kill(note["pid"], signal.SIGKILL)

    assert worker.wait() == 0
    job = fresh(job)
    assert [a.outcome for a in job.attempts.all()] == ["lost"]
    assert (job.status, job.attempt) == (Job.Status.READY, 1)


@pytest.mark.parametrize("when", ["starting", "idle"])
def test_a_stop_does_not_wait_for_a_frozen_child_that_runs_nothing(start, queue, when):
    worker = start("--shutdown-timeout", "60s")
    if when == "idle":
        assert jobs.echo.using(queue_name=queue).enqueue(1).result(SOON) == 1
    command = Path(f"/proc/{worker.child()}/cmdline")
    # A process that is forked and not yet that program would keep the command that forks.
    wait_for("its program", lambda: b"worker.boot" in command.read_bytes())
    os.kill(worker.child(), signal.SIGSTOP)

    worker.stop()

    assert "Child process" not in worker.log


def test_programs_that_plain_jobs_have_started_outlive_a_child_that_is_killed(
    start, notes, folder, queue
):
    worker = start("--shutdown-timeout", "0")
    job = jobs.hold_with_program.using(queue_name=queue).enqueue(folder)
    (note,) = wait_for("the start", lambda: notes.read("start"))

    worker.send(signal.SIGTERM)

    assert worker.wait() == 0
    assert (status_of(job), fresh(job).attempt) == (Job.Status.READY, 0)
    assert worker.family() == [note["child"]]


def test_a_hook_that_takes_its_time_is_waited_for(start, notes, folder, queue):
    worker = start()
    jobs.die_slowly.using(queue_name=queue).enqueue(folder)
    wait_for("the hook", lambda: notes.read("hook"))

    worker.send(signal.SIGTERM)
    worker.wait_for_line("Stopping")
    # Longer than a child may be silent.
    threading.Event().wait(2.5)
    notes.let_go()

    assert worker.wait() == 0
    assert len(notes.read("hook ends")) == 1


@pytest.mark.parametrize("times", [8, pytest.param(200, marks=pytest.mark.stress)])
def test_a_stop_at_any_moment_after_the_start_strands_nothing(start, notes, folder, queue, times):
    made: list[Job] = []
    for number in range(times):
        # Some for each, so that there is always something to claim.
        for _ in range(15):
            made.append(jobs.work.using(queue_name=queue).enqueue(folder, str(len(made)), 0.05))
        worker = start("--lease", "60s", "--concurrency", "4")
        ran = len(notes.read("start"))
        # From the start of the command, its greeting, and the first job on.
        began = [
            lambda: True,
            lambda worker=worker: "django_durable " in worker.log,
            lambda ran=ran: len(notes.read("start")) > ran,
        ]
        wait_for("the start", began[number % 3])
        moment = time.monotonic() + random.random() * 0.3  # noqa: S311
        wait_for("the moment", lambda moment=moment: time.monotonic() > moment)
        if number % 3:
            worker.stop()
        else:
            # Before the command itself is loaded, the signal ends the interpreter.
            worker.send(signal.SIGTERM)
            assert worker.wait() in (0, -signal.SIGTERM)
            assert not worker.family()
        assert not Job.objects.in_queue(queue).running().exists()
    start()
    for job in wait_for_end(*made):
        assert (job.status, job.attempt) == (Job.Status.SUCCESSFUL, 1)
    assert len(notes.read("end")) == len(made)


@pytest.mark.parametrize("rounds", [2, pytest.param(10, marks=pytest.mark.stress)])
def test_a_rolling_restart_under_load_runs_each_job_once(start, notes, folder, queue, rounds):
    flags = ("--concurrency", "4", "--shutdown-timeout", "20s", "-v", "0")
    workers = [start(*flags).wait_until_ready() for _ in range(3)]
    kinds = (jobs.work, jobs.async_work)
    made: list[Job] = []
    for _ in range(rounds):
        for number in range(3):
            made += [
                kinds[len(made) % 2]
                .using(queue_name=queue)
                .enqueue(folder, f"{len(made)}-{n}", 0.1)
                for n in range(40)
            ]
            wait_for("work", Job.objects.in_queue(queue).running().exists)
            workers[number].stop()
            workers[number] = start(*flags)
    ended = wait_for_end(*made, patience=60)
    for worker in workers:
        worker.stop()

    assert {(job.status, job.attempt) for job in ended} == {(Job.Status.SUCCESSFUL, 1)}
    # None was handed back half way, since each stop had time for what ran.
    assert len(notes.read("start")) == len(notes.read("end")) == len(made)
