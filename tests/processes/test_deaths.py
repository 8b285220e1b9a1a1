"""Workers that are killed: nothing is lost, and what was lost of an attempt is recorded."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest
from django.db import connection, transaction

from django_durable import JobFailed
from django_durable.models import Job, Worker
from django_durable.worker.suspects import Losses, Suspects
from tests.processes.harness import (
    fresh,
    is_alive,
    status_of,
    wait_for,
    wait_for_end,
    wait_for_status,
)
from tests.workerapp import jobs

SOON = 20
# Between a killed worker's lease and the start of the next attempt elsewhere.
SLACK = 2.0


def lost_attempts(job: Job) -> list[tuple[int, str, str]]:
    return [(a.number, a.outcome, a.error_class) for a in job.attempts.all()]


def started(notes, *labels):
    """Wait until a job of each label has started."""
    wait_for("the starts", lambda: {note["label"] for note in notes.read("start")} >= set(labels))


def test_jobs_of_a_killed_child_run_again_at_once(start, notes, folder, queue):
    worker = start("--lease", "30s")
    made = [jobs.hold.using(queue_name=queue).enqueue(folder, label) for label in "abc"]
    places = [job.run_after for job in made]
    started(notes, *"abc")

    os.kill(worker.child(), signal.SIGKILL)
    killed_at = time.monotonic()
    wait_for("the second starts", lambda: len(notes.read("start", attempt=2)) == 3)

    # Long before the lease ends.
    assert time.monotonic() - killed_at < 15
    notes.let_go()
    for job, place in zip(wait_for_end(*made), places, strict=True):
        assert (job.status, job.attempt) == (Job.Status.SUCCESSFUL, 2)
        assert lost_attempts(job) == [(1, "lost", "LeaseLost")]
        assert job.run_after == place
    assert "was killed by signal 9" in worker.log
    worker.stop()


def test_the_last_attempt_of_a_job_whose_child_is_killed_is_a_dead_letter(
    start, notes, folder, queue
):
    worker = start()
    job = jobs.hold.using(queue_name=queue, max_attempts=1).enqueue(folder)
    started(notes, "job")

    os.kill(worker.child(), signal.SIGKILL)

    with pytest.raises(JobFailed) as caught:
        job.result(SOON)
    assert caught.value.error_class == "LeaseLost"
    assert caught.value.dead_letter.reason == "lost"
    wait_for("the hook", lambda: notes.read("hook", job=str(job.pk), reason="lost"))
    assert len(notes.read("start")) == 1


@pytest.mark.parametrize(
    ("poison", "how"),
    [(jobs.exit_at_once, "ended with code 7"), (jobs.segfault, "was killed by signal 11")],
)
def test_poison_ends_as_a_dead_letter_and_charges_its_neighbours_no_more(
    start, notes, folder, queue, poison, how
):
    worker = start()
    neighbour = jobs.hold.using(queue_name=queue, max_attempts=5).enqueue(folder, "neighbour")
    started(notes, "neighbour")
    job = poison.using(queue_name=queue, max_attempts=2).enqueue(folder)

    (job,) = wait_for_end(job)
    notes.let_go()
    (neighbour,) = wait_for_end(neighbour)

    assert (job.status, job.dead_letter.reason, job.attempt) == (Job.Status.DEAD, "lost", 2)
    assert lost_attempts(job) == [(n, "lost", "LeaseLost") for n in (1, 2)]
    assert len(notes.read("run")) == 2
    wait_for("the hook", lambda: notes.read("hook", job=str(job.pk)))
    assert neighbour.status == Job.Status.SUCCESSFUL
    assert neighbour.attempt <= 3
    assert how in worker.log
    worker.stop()


def test_a_killed_supervisor_leaves_a_child_that_finishes_and_goes(start, notes, folder, queue):
    worker = start("--lease", "20s")
    job = jobs.hold.using(queue_name=queue).enqueue(folder)
    started(notes, "job")
    child = worker.child()

    worker.send(signal.SIGKILL)
    worker.process.wait()
    late = jobs.noop.using(queue_name=queue).enqueue()
    notes.let_go()

    assert job.result(SOON) == "job"
    assert (fresh(job).attempt, fresh(job).attempts.count()) == (1, 0)
    wait_for("the child to leave", lambda: not is_alive(child))
    assert status_of(late) == Job.Status.READY


def test_jobs_of_a_killed_supervisor_run_elsewhere_within_the_lease(start, notes, folder, queue):
    first = start("--lease", "3s")
    job = jobs.hold.using(queue_name=queue).enqueue(folder)
    started(notes, "job")
    child = first.child()
    start("--lease", "3s").wait_until_ready()

    first.send(signal.SIGKILL)
    killed_at = time.monotonic()
    (second,) = wait_for("the second start", lambda: notes.read("start", attempt=2))

    assert second["at"] - killed_at < 3 + SLACK
    assert not is_alive(child)
    notes.let_go()
    assert job.result(SOON) == "job"
    assert lost_attempts(job) == [(1, "lost", "LeaseLost")]


def test_jobs_of_a_killed_worker_run_elsewhere_within_the_lease(start, notes, folder, queue):
    first = start("--lease", "3s", "--concurrency", "3", "--name", "victim")
    made = [jobs.hold.using(queue_name=queue).enqueue(folder, label) for label in "abc"]
    places = [job.run_after for job in made]
    started(notes, *"abc")
    # Rescue does not wait for the poll.
    second = start("--lease", "3s", "--poll-interval", "30s").wait_until_ready()

    first.send_all(signal.SIGKILL)
    killed_at = time.monotonic()
    wait_for("the second starts", lambda: len(notes.read("start", attempt=2)) == 3)
    assert max(note["at"] for note in notes.read("start")) - killed_at < 3 + SLACK

    notes.let_go()
    for job, place in zip(wait_for_end(*made), places, strict=True):
        assert (job.status, job.attempt, job.run_after) == (Job.Status.SUCCESSFUL, 2, place)
        assert lost_attempts(job) == [(1, "lost", "LeaseLost")]
        assert job.attempts.get().worker == "victim"
        assert f"Rescued {job.name} {job.pk} from victim" in second.log


def test_a_rescued_job_keeps_its_place_in_the_order(start, notes, folder, queue):
    first = start("--lease", "2s", "--concurrency", "1")
    older = jobs.hold.using(queue_name=queue).enqueue(folder, "older")
    started(notes, "older")
    for number in range(3):
        jobs.hold.using(queue_name=queue).enqueue(folder, f"younger-{number}")
    first.send_all(signal.SIGKILL)
    # It has the younger ones to choose from only while it has not rescued the older one.
    blocker = jobs.hold.using(queue_name=queue, priority=100).enqueue(folder, "blocker")
    start("--lease", "2s", "--concurrency", "1")
    started(notes, "blocker")
    wait_for_status(older, Job.Status.READY)

    notes.let_go()
    wait_for_end(*Job.objects.in_queue(queue))

    order = [note["label"] for note in notes.read("start")]
    assert order == ["older", "blocker", "older", *(f"younger-{n}" for n in range(3))]
    assert status_of(blocker) == Job.Status.SUCCESSFUL


@pytest.mark.parametrize("most", [1, 2])
def test_max_attempts_holds_when_every_attempt_is_killed(start, notes, folder, queue, most):
    job = jobs.hold.using(queue_name=queue, max_attempts=most).enqueue(folder)
    worker = start("--lease", "2s")

    for number in range(1, most + 1):
        wait_for("the start", lambda number=number: notes.read("start", attempt=number))
        os.kill(worker.child(), signal.SIGKILL)
        wait_for("the end of the attempt", lambda number=number: job.attempts.count() == number)

    (job,) = wait_for_end(job)
    assert (job.status, job.dead_letter.reason) == (Job.Status.DEAD, "lost")
    assert job.dead_letter.attempt_count == most
    assert len(notes.read("start")) == most


def test_a_job_that_kills_its_supervisor_runs_again_elsewhere(start, notes, folder, queue):
    start("--lease", "2s").wait_until_ready()
    job = jobs.kill_parent_once.using(queue_name=queue).enqueue(folder)
    wait_for("the first run", lambda: notes.read("run"))
    start("--lease", "2s")

    assert job.result(SOON) == 2
    assert lost_attempts(job) == [(1, "lost", "LeaseLost")]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_job_that_signals_its_own_group_does_no_harm(start, queue, number):
    worker = start()
    jobs.signal_own_group.using(queue_name=queue).enqueue(int(number)).result(SOON)

    assert jobs.echo.using(queue_name=queue).enqueue("works").result(SOON) == "works"
    worker.stop()


def run_forking(worker, notes, folder, queue, job_type, then) -> None:
    job = job_type.using(queue_name=queue).enqueue(folder, then)

    with worker.explained():
        assert job.result(SOON) == "parent"
        (copy,) = wait_for("the copy", lambda: notes.read("copy"))
        assert is_alive(copy["pid"]) or then != "live"
        if then != "live":
            wait_for("the end of the copy", lambda: not is_alive(copy["pid"]))
    assert jobs.echo.using(queue_name=queue).enqueue("works").result(SOON) == "works"
    jobs.async_noop.using(queue_name=queue).enqueue().result(SOON)
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0
    assert (fresh(job).attempt, fresh(job).attempts.count()) == (1, 0)
    # Of this job: every worker also rescues what a worker of another queue has left.
    assert f"{job.pk} failed" not in worker.log


@pytest.mark.parametrize("then", ["live", "raise", "return"])
def test_a_job_that_forks_is_recorded_once_by_the_original(start, notes, folder, queue, then):
    run_forking(start(), notes, folder, queue, jobs.fork, then)


@pytest.mark.parametrize("then", ["live", "raise", "return", "await"])
def test_a_copy_of_an_async_run_leaves_the_loop_alone(start, notes, folder, queue, then):
    run_forking(start(), notes, folder, queue, jobs.afork, then)

    # Nothing else of the loop has run in the copy.
    assert len(notes.read("loop")) == 1


@pytest.mark.parametrize(
    "job_type",
    [
        *(jobs.afork_in_thread, jobs.afork_in_step),
        *(jobs.fork_in_step, jobs.fork_in_atomic_step, jobs.fork_before_step),
    ],
    ids=str,
)
@pytest.mark.parametrize("then", ["raise", "return"])
def test_a_copy_that_comes_back_elsewhere_ends_there(start, notes, folder, queue, job_type, then):
    run_forking(start(), notes, folder, queue, job_type, then)


def test_a_row_that_is_locked_while_its_child_dies_is_rescued_when_it_is_free(
    start, notes, folder, queue
):
    worker = start("--lease", "8s")
    job = jobs.hold.using(queue_name=queue).enqueue(folder)
    started(notes, "job")

    with transaction.atomic():
        Job.objects.select_for_update().get(pk=job.pk)
        os.kill(worker.child(), signal.SIGKILL)
        worker.wait_for_line("was killed by signal 9")
        wait_for("a new child", worker.children)
    freed_at = time.monotonic()
    wait_for("the second start", lambda: notes.read("start", attempt=2))

    # By the dead child's supervisor; the lease has longer to go.
    assert time.monotonic() - freed_at < 5
    assert lost_attempts(job) == [(1, "lost", "LeaseLost")]


@pytest.fixture
def ends_wait() -> Iterator[None]:
    """Let every success wait, its row locked, for whoever holds the advisory lock of its queue.

    Who waits for a lock of the row itself has not got it yet: a rescue could come first. And as
    long as it takes, as for a slow disk, not for the moment that a worker waits for locks.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            "CREATE FUNCTION end_waits() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            " PERFORM set_config('lock_timeout', '0', TRUE);"
            " PERFORM pg_advisory_xact_lock(hashtext(NEW.queue_name)); RETURN NEW; END $$;"
            "CREATE TRIGGER end_waits BEFORE UPDATE ON durable_job FOR EACH ROW"
            " WHEN (NEW.status = 'SUCCESSFUL') EXECUTE FUNCTION end_waits()"
        )
    yield
    with connection.cursor() as cursor:
        cursor.execute("DROP FUNCTION end_waits CASCADE")


def test_an_end_that_is_being_written_while_its_child_dies_counts(
    start, ends_wait, notes, folder, queue
):
    worker = start("--lease", "3s")
    job = jobs.hold.using(queue_name=queue).enqueue(folder)
    started(notes, "job")

    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", [queue])
        notes.let_go()
        wait_for("the record to hold the row", others_wait_for_us)
        os.kill(worker.child(), signal.SIGKILL)
        worker.wait_for_line("was killed by signal 9")
        wait_for("a new child", worker.children)

    (job,) = wait_for_end(job)
    assert (job.status, job.return_value, job.attempt) == (Job.Status.SUCCESSFUL, "job", 1)
    assert jobs.noop.using(queue_name=queue).enqueue().result(SOON) is None
    assert len(notes.read("start")) == 1


def others_wait_for_us() -> bool:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_locks"
            " WHERE NOT granted AND pg_backend_pid() = ANY(pg_blocking_pids(pid))"
        )
        return bool(cursor.fetchone()[0])


def test_deleted_worker_rows_hide_no_job_from_rescue_and_come_back(start, notes, folder, queue):
    first = start("--lease", "3s")
    job = jobs.hold.using(queue_name=queue).enqueue(folder)
    started(notes, "job")
    second = start("--lease", "3s")
    row = second.row()
    first.row()

    Worker.objects.all().delete()
    first.send_all(signal.SIGKILL)
    killed_at = time.monotonic()
    (again,) = wait_for("the second start", lambda: notes.read("start", attempt=2))

    assert again["at"] - killed_at < 3 + SLACK
    assert second.row().incarnation == row.incarnation
    assert second.row().heartbeat_at - row.heartbeat_at > timedelta(0)
    notes.let_go()
    assert job.result(SOON) == "job"


def test_the_hook_is_called_by_a_worker_that_knows_the_type(start, notes, folder, queue):
    first = start("--lease", "2s")
    job = jobs.hold.using(queue_name=queue, max_attempts=1).enqueue(folder)
    wait_for("the start", lambda: notes.read("start"))
    first.send_all(signal.SIGKILL)
    ignorant = start("--lease", "2s", WITH_JOBS="0")

    (job,) = wait_for_end(job)
    assert (job.status, job.dead_letter.reason) == (Job.Status.DEAD, "lost")
    ignorant.wait_for_line("Rescued")
    ignorant.stop()
    assert not notes.read("hook")

    start("--lease", "2s")
    wait_for("the hook", lambda: notes.read("hook", job=str(job.pk), reason="lost"))


@pytest.mark.parametrize(
    ("kind", "poisons", "innocents", "seconds", "processes"),
    [
        ("exit_quietly", 1, 14, 0.0, "1"),
        ("exit_quietly", 1, 14, 0.0, "2"),
        ("exit_quietly", 3, 12, 0.5, "1"),
        ("exit_under_key", 1, 12, 0.0, "1"),
    ],
)
def test_a_job_that_ends_its_child_each_time_costs_no_other_its_life(
    start, queue, kind, poisons, innocents, seconds, processes
):
    poison = [getattr(jobs, kind).using(queue_name=queue).enqueue() for _ in range(poisons)]
    made = [jobs.innocent.using(queue_name=queue).enqueue(seconds) for _ in range(innocents)]
    worker = start("--batch", "--processes", processes)

    assert worker.wait(patience=90) == 0
    with worker.explained():
        assert [status_of(job) for job in poison] == ["DEAD"] * poisons
        assert [status_of(job) for job in made] == ["SUCCESSFUL"] * innocents


def test_suspects_that_can_not_be_claimed_keep_no_other_waiting(start, queue):
    losses, suspects = Losses(), Suspects()
    made = [jobs.innocent.using(queue_name=queue).enqueue() for _ in range(4)]
    ids = [job.pk for job in made]
    first, second, third = (uuid4() for _ in range(3))
    # Whatever of it the first rescues could not take.
    assert losses.add(first, ids) == losses.add(first, ids[1:]) == []
    assert losses.add(second, ids) == ids
    assert losses.add(second, ids[1:]) == losses.add(third, ids) == []
    suspects.add(ids)
    chosen = set()
    for _ in ids:
        assert suspects.are_waiting or not chosen
        (one,) = set(ids) - set(suspects.held_back(list))
        chosen.add(one)
    assert chosen == set(ids)
    assert not suspects.are_waiting
    # While one runs, the others wait; what has ended is none any more.
    assert suspects.held_back(lambda: [(ids[0], 1)]) == ids
    for job in made:
        job.cancel()
    assert suspects.held_back(list) == []
    assert not suspects.are_waiting


MEMORY = Path("/sys/fs/cgroup/memory")


@pytest.fixture
def little_memory() -> Iterator[Path]:
    """A control group of 256 MiB for a worker, where this process may make one."""
    group = MEMORY / f"durable-{uuid4()}"
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text("256M")
    except OSError as error:
        pytest.skip(f"no control group can be made: {error}")
    yield group
    wait_for("the end of its processes", lambda: not (group / "tasks").read_text())
    group.rmdir()


def test_a_job_that_takes_all_memory_ends_as_a_dead_letter_and_costs_no_other_its_life(
    little_memory, start, notes, folder, queue
):
    greedy = jobs.take_all_memory.using(queue_name=queue).enqueue(folder)
    made = [jobs.innocent.using(queue_name=queue).enqueue(0.1) for _ in range(20)]
    into = f'echo $$ > {little_memory}/cgroup.procs; exec "$@"'
    worker = start("--batch", through=into)

    assert worker.wait(patience=60) == 0
    with worker.explained():
        greedy = fresh(greedy)
        assert (greedy.status, greedy.attempt, greedy.dead_letter.reason) == ("DEAD", 3, "lost")
        assert len(notes.read("run")) == 3
        assert [note["job"] for note in notes.read("hook")] == [str(greedy.pk)]
        assert [status_of(job) for job in made] == ["SUCCESSFUL"] * 20
        # By nobody but the kernel.
        assert len(re.findall(r"Child process \d+ was killed by signal 9", worker.log)) == 3


def test_suspects_keep_the_order_under_their_key(start, queue):
    suspects = Suspects()
    keyed = jobs.innocent.using(queue_name=queue, concurrency_key=queue).enqueue()
    free = [jobs.innocent.using(queue_name=queue).enqueue() for _ in range(2)]
    suspects.add([keyed.pk, *(job.pk for job in free)])
    # It goes first, and is never held back: what is next under its key would be claimed.
    assert suspects.held_back(list) == [job.pk for job in free]
    assert suspects.held_back(lambda: [(keyed.pk, 1)]) == [job.pk for job in free]
    # But the others don't wait for one that can't be claimed.
    chosen = [set(suspects.held_back(list)) for _ in range(6)]
    assert {free[0].pk} in chosen
    assert {free[1].pk} in chosen
    for job in (keyed, *free):
        job.cancel()
