"""The children of a worker: several at once, replaced in time, and isolated attempts."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

from django_durable.models import Job
from tests.processes.harness import fresh, is_alive, wait_for, wait_for_end, wait_for_status
from tests.workerapp import jobs

SOON = 30


def shared(job_type, **options):
    return job_type.using(queue_name="shared", **options)


def test_the_death_of_one_child_leaves_the_others_alone(start, notes, folder, queue):
    worker = start("--processes", "2", "--concurrency", "1")
    made = [jobs.hold.using(queue_name=queue).enqueue(folder, label) for label in "ab"]
    wait_for("the starts", lambda: len(notes.read("start")) == 2)
    victim, survivor = notes.read("start")

    os.kill(victim["pid"], signal.SIGKILL)
    wait_for("the second start", lambda: notes.read("start", attempt=2))
    notes.let_go()

    attempts = {job.args[1]: job.attempt for job in wait_for_end(*made)}
    assert attempts == {victim["label"]: 2, survivor["label"]: 1}
    worker.stop()


def test_a_child_that_has_taken_its_jobs_is_replaced(start, notes, folder, queue):
    worker = start("--max-jobs", "5", "--concurrency", "2")
    work = jobs.work.using(queue_name=queue)
    made = [work.enqueue(folder, str(number), 0.02) for number in range(16)]

    # It goes on until its successor can take over.
    worker.wait_for_line("Replacing child process")
    old = notes.read("start")[0]["pid"]
    wait_for("the old child to leave", lambda: not is_alive(old))
    made += [work.enqueue(folder, "after")]

    ended = wait_for_end(*made)
    assert {(job.status, job.attempt) for job in ended} == {(Job.Status.SUCCESSFUL, 1)}
    assert notes.read("start", label="after")[0]["pid"] != old
    worker.stop()


def kill_successor(worker, old):
    """Kill the child that is to take the place of another, before it has come up."""
    worker.wait_for_line("Replacing child process")
    (successor,) = wait_for("a successor", lambda: [p for p in worker.children() if p != old])
    os.kill(successor, signal.SIGKILL)
    worker.wait_for_line(f"Child process {successor} was killed")


def test_a_successor_that_dies_before_it_is_ready_gets_one_too(start, notes, folder, queue):
    worker = start("--max-jobs", "2", "--concurrency", "1")
    old = worker.child()
    work = jobs.work.using(queue_name=queue)
    wait_for_end(*(work.enqueue(folder, label) for label in "ab"))

    kill_successor(worker, old)

    wait_for("the old child to leave", lambda: not is_alive(old))
    wait_for_end(work.enqueue(folder, "after"))
    assert notes.read("start", label="after")[0]["pid"] != old
    worker.stop()


def test_stuck_slots_pass_on_though_the_first_successor_dies(start, notes, folder, queue):
    worker = start("--concurrency", "1")
    old = worker.child()
    wait_for_end(jobs.overrun.using(queue_name=queue).enqueue(folder))

    kill_successor(worker, old)

    (job,) = wait_for_end(jobs.work.using(queue_name=queue).enqueue(folder, "after"))
    assert job.status == Job.Status.SUCCESSFUL
    notes.let_go()
    worker.stop()


def test_an_old_child_is_replaced_and_finishes_what_it_runs(start, notes, folder, queue):
    worker = start("--max-seconds", "2s", "--concurrency", "2")
    held = jobs.hold.using(queue_name=queue).enqueue(folder)
    (note,) = wait_for("the start", lambda: notes.read("start"))
    worker.wait_for_line("Replacing child process")

    # Its successor serves the free slot meanwhile.
    wait_for("a successor", lambda: len(worker.children()) > 1)
    isolated_from = jobs.work.using(queue_name=queue)
    wait_for(
        "a job of the successor",
        lambda: (
            isolated_from.enqueue(folder, "new").result(SOON)
            and [n for n in notes.read("start", label="new") if n["pid"] != note["pid"]]
        ),
    )
    assert is_alive(note["pid"])
    notes.let_go()
    assert held.result(SOON) == "job"
    assert fresh(held).attempt == 1
    wait_for("the old child to leave", lambda: not is_alive(note["pid"]))
    worker.stop()


def test_a_child_that_is_too_big_from_its_start_is_replaced_after_a_job_only(
    start, notes, folder, queue
):
    worker = start("--max-rss", "8", "--concurrency", "1")
    line = worker.wait_for_line("more than --max-rss allows")
    assert "WARNING" in line
    assert "8 MiB" in line
    old = worker.child()
    # Longer than it takes to look again.
    threading.Event().wait(2.5)
    assert worker.children() == [old]

    made = [jobs.work.using(queue_name=queue).enqueue(folder, label) for label in "ab"]
    wait_for_end(*made)
    wait_for("a successor", lambda: old not in worker.children())

    assert worker.log.count("more than --max-rss allows") == 1
    worker.stop()


def test_changed_code_gets_new_children(start, notes, folder, queue):
    worker = start("--reload")
    held = jobs.hold.using(queue_name=queue).enqueue(folder)
    (note,) = wait_for("the start", lambda: notes.read("start"))

    os.utime(Path(jobs.__file__))
    worker.wait_for_line("the code has changed")
    notes.let_go()

    assert held.result(SOON) == "job"
    wait_for("the old child to leave", lambda: not is_alive(note["pid"]))
    assert jobs.echo.using(queue_name=queue).enqueue(1).result(SOON) == 1
    assert fresh(held).attempt == 1
    worker.stop()


def test_changed_code_that_only_a_child_has_imported_gets_new_children(
    start, tmp_path, folder, queue
):
    module = tmp_path / "imported_late.py"
    module.write_text("VALUE = 'old'")
    worker = start("--reload")
    call = jobs.import_late.using(queue_name=queue)
    assert call.enqueue(folder, module.stem).result(SOON) == "old"

    module.write_text("VALUE = 'changed'")
    # Again and again, since nobody says when the file is watched.
    wait_for("the news", lambda: os.utime(module) or "the code has changed" in worker.log)

    wait_for("the new code", lambda: call.enqueue(folder, module.stem).result(SOON) == "changed")
    worker.stop()


@pytest.mark.parametrize("job_type", [jobs.use_pool, jobs.isolated_use_pool])
def test_jobs_may_fork_processes_that_can_be_told_to_end(worker, folder, job_type):
    assert shared(job_type).enqueue(folder).result(SOON) == [0, 1, 4, 9]


# isolation="process"


def test_an_isolated_attempt_has_a_process_of_its_own(worker):
    value, attempt, pid = shared(jobs.isolated_async).enqueue({"a": (1, None)}).result(SOON)

    assert (value, attempt) == ({"a": (1, None)}, 1)
    assert pid not in worker.children()


@pytest.mark.parametrize(
    ("kind", "status", "error_class"),
    [
        ("ValueError", "DEAD", "ValueError"),
        ("SystemExit", "DEAD", "SystemExit"),
        ("CancelJob", "CANCELLED", "CancelJob"),
        ("WeirdError", "DEAD", "tests.workerapp.jobs.WeirdError"),
    ],
)
def test_what_an_isolated_attempt_raises_is_recorded(worker, kind, status, error_class):
    (job,) = wait_for_end(shared(jobs.isolated_raising).enqueue(kind))

    assert (job.status, job.attempts.get().error_class) == (status, error_class)


def test_an_isolated_attempt_that_dies_costs_nobody_else_anything(worker, notes, folder):
    neighbour = shared(jobs.hold).enqueue(folder, "neighbour")
    wait_for("the start", lambda: notes.read("start"))
    job = shared(jobs.isolated_exit, max_attempts=2).enqueue(folder)

    (job,) = wait_for_end(job)
    notes.let_go()

    assert (job.status, job.dead_letter.reason) == (Job.Status.DEAD, "lost")
    assert [a.outcome for a in job.attempts.all()] == ["lost", "lost"]
    assert len(notes.read("run")) == 2
    wait_for("the hook", lambda: notes.read("hook", job=str(job.pk)))
    assert neighbour.result(SOON) == "neighbour"
    assert fresh(neighbour).attempt == 1


def test_an_isolated_attempt_that_overruns_is_killed_with_all_it_started(worker, notes, folder):
    job = shared(jobs.isolated_overrun).enqueue(folder)

    (job,) = wait_for_end(job)

    attempt = job.attempts.get()
    assert (attempt.outcome, attempt.error_class) == ("timed_out", "JobTimeout")
    (note,) = notes.read("start")
    wait_for("their end", lambda: not is_alive(note["pid"]) and not is_alive(note["child"]))
    assert shared(jobs.echo).enqueue(1).result(SOON) == 1


def test_a_thread_that_an_isolated_job_leaves_does_not_keep_its_end_from_the_record(worker):
    pid = shared(jobs.isolated_leave_thread).enqueue().result(SOON)

    wait_for("its end", lambda: not is_alive(pid))


def test_an_isolated_attempt_is_killed_by_a_cancel(worker, notes, folder):
    job = shared(jobs.isolated_hold).enqueue(folder)
    (note,) = wait_for("the start", lambda: notes.read("start"))

    assert job.cancel("enough") == "requested"

    job = wait_for_status(job, Job.Status.CANCELLED)
    assert job.cancel_reason == "enough"
    wait_for("its end", lambda: not is_alive(note["pid"]))
    assert not notes.read("end")


def test_isolated_attempts_go_with_their_worker(start, notes, folder, queue):
    worker = start("--lease", "2s")
    job = jobs.isolated_hold.using(queue_name=queue, max_attempts=1).enqueue(folder)
    (note,) = wait_for("the start", lambda: notes.read("start"))

    os.kill(worker.child(), signal.SIGKILL)

    (job,) = wait_for_end(job)
    assert job.dead_letter.reason == "lost"
    wait_for("its end", lambda: not is_alive(note["pid"]))
    wait_for("the hook", lambda: notes.read("hook", job=str(job.pk)))
    worker.stop()


def test_isolated_attempts_finish_in_a_drain(start, notes, folder, queue):
    worker = start()
    job = jobs.isolated_hold.using(queue_name=queue).enqueue(folder)
    wait_for("the start", lambda: notes.read("start"))

    worker.send_all(signal.SIGTERM)
    worker.wait_for_line("Stopping")
    notes.let_go()

    assert worker.wait() == 0
    assert job.result(SOON) == "job"
    wait_for("the end of all", lambda: not worker.family())


def test_a_child_that_does_not_come_up_is_replaced(start, queue):
    job = jobs.noop.using(queue_name=queue).enqueue()
    worker = start("--stall-timeout", "3")

    def is_starting() -> bool:
        pids = worker.children()
        return bool(pids) and b"DURABLE" in Path(f"/proc/{pids[0]}/cmdline").read_bytes()

    wait_for("a child that starts", is_starting)
    os.kill(worker.child(), signal.SIGSTOP)

    assert wait_for_end(job)[0].status == "SUCCESSFUL"
    assert "silent for" in worker.log
    worker.stop()


@pytest.mark.stress
def test_an_idle_child_that_is_stopped_is_replaced(start, queue):
    worker = start()
    worker.wait_until_ready()
    wait_for_end(jobs.noop.using(queue_name=queue).enqueue())
    os.kill(worker.child(), signal.SIGSTOP)

    job = jobs.noop.using(queue_name=queue).enqueue()
    assert wait_for_end(job, patience=60)[0].status == "SUCCESSFUL"
    worker.stop()
