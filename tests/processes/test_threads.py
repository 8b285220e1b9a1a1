"""The threads in which a child runs jobs: what is thrown into one loses nothing."""

from __future__ import annotations

import threading

import psycopg

from django_durable.models import Job
from tests.processes.harness import database_url, fresh, wait_for, wait_for_end
from tests.workerapp import jobs

SOON = 30
# Without the measuring of coverage: CPython 3.11 never leaves the first instruction of a function
# that is traced, in any thread, while an exception waits for a thread that waits itself.
UNTRACED = {"COVERAGE_PROCESS_CONFIG": "", "COVERAGE_PROCESS_START": ""}


def test_what_a_timer_throws_into_an_idle_thread_costs_nothing(start, queue):
    worker = start("--concurrency", "4", **UNTRACED)
    thrower = jobs.throw_later.using(queue_name=queue).enqueue([0.2])
    assert thrower.result(SOON) == "returned"
    threading.Event().wait(0.5)

    made = [jobs.echo.using(queue_name=queue, max_attempts=1).enqueue(n) for n in range(8)]

    assert [job.result(SOON) for job in made] == list(range(8))
    worker.wait_for_line("Thrown into threads between two runs, which go on: TimeoutError")
    assert "Child process" not in worker.log
    worker.stop()


def test_what_a_timer_throws_at_any_moment_loses_no_job(start, folder, queue):
    worker = start("--concurrency", "2", **UNTRACED)
    work = jobs.work.using(queue_name=queue)
    # Both threads, to begin with: the timer could meet the start of one.
    wait_for_end(*(work.enqueue(folder, label, 0.3) for label in "ab"))
    echo = jobs.echo.using(queue_name=queue, max_attempts=None, backoff=jobs.AT_ONCE)
    made = [jobs.throw_later.using(queue_name=queue).enqueue([0.05, *[0.0003] * 1500])]
    for _ in range(4):
        made += echo.enqueue_many([((n,), {}) for n in range(150)])

    with worker.explained():
        ended = wait_for_end(*made)

    assert {job.status for job in ended} == {Job.Status.SUCCESSFUL}
    assert "Child process" not in worker.log
    worker.stop()


def test_slots_are_used_while_many_ends_wait_for_their_record(start, notes, folder, queue):
    start("--concurrency", "2")
    first = jobs.hold.using(queue_name=queue).enqueue(folder)
    wait_for("the start", lambda: notes.read("start"))
    with psycopg.connect(database_url()) as somebody:
        somebody.execute("SELECT FROM durable_job WHERE id = %s FOR UPDATE", [first.pk])
        notes.let_go()
        wait_for("the end", lambda: notes.read("end"))
        work = jobs.work.using(queue_name=queue)
        made = work.enqueue_many([((folder, str(number)), {}) for number in range(30)])
        wait_for("all ends", lambda: len(notes.read("end")) == 31)

    ended = wait_for_end(first, *made)
    assert {(job.status, job.attempt) for job in ended} == {("SUCCESSFUL", 1)}


def test_a_child_that_can_have_no_threads_gives_way_to_another(start, notes, folder, queue):
    worker = start("--concurrency", "4")
    jobs.break_new_threads.using(queue_name=queue).enqueue().result(SOON)

    made = [
        jobs.work.using(queue_name=queue).enqueue(folder, str(number), 0.5) for number in range(4)
    ]

    ended = wait_for_end(*made)
    assert {job.status for job in ended} == {Job.Status.SUCCESSFUL}
    assert "a thread that runs jobs has ended" in worker.log
    worker.stop()


def test_a_child_whose_loop_has_ended_gives_way_to_another(start, queue):
    worker = start()
    job = jobs.break_loop_once.using(queue_name=queue).enqueue()

    assert job.result(SOON) == 2
    assert [attempt.outcome for attempt in fresh(job).attempts.all()] == ["lost"]
    assert "a thread that runs jobs has ended" in worker.log
    worker.stop()
