"""Rows of running jobs that somebody's transaction has locked: nobody else waits for it."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from django.db import connection, transaction

from django_durable.models import Job
from tests.processes.harness import fresh, status_of, wait_for, wait_for_end
from tests.workerapp import jobs, tasks

LEASE = 2.0


@contextmanager
def locked(lock: Callable[[], object]) -> Iterator[None]:
    """Hold, in another thread's transaction, what `lock` locks for as long as the block takes."""
    is_locked, is_over = threading.Event(), threading.Event()

    def hold() -> None:
        with transaction.atomic():
            lock()
            is_locked.set()
            is_over.wait(60)
        connection.close()

    thread = threading.Thread(target=hold)
    thread.start()
    assert is_locked.wait(10)
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def slowest_of_others(queue: str, seconds: float) -> float:
    """Run one quick job after the other for so long; return what the slowest took."""
    slowest, end = 0.0, time.monotonic() + seconds
    while (started := time.monotonic()) < end:
        kinds = [jobs.echo.using(queue_name=queue), tasks.step_often.using(queue_name=queue)]
        wait_for_end(kinds[0].enqueue(1), kinds[1].enqueue(3))
        slowest = max(slowest, time.monotonic() - started)
    return slowest


VERBS = ["step", "progress", "check", "sleep", "end", "await"]
HOW = ["signal", "lock", "cancel"]
SOME = {("step", "signal"), ("progress", "cancel"), ("end", "signal"), ("await", "lock")}


@pytest.mark.parametrize(
    ("verb", "how"),
    [
        pytest.param(verb, how, marks=[] if (verb, how) in SOME else pytest.mark.stress)
        for verb in VERBS
        for how in HOW
    ],
)
def test_who_locks_a_running_job_holds_up_nothing_else(start, notes, folder, queue, verb, how):
    lock_a_running_job(start, notes, folder, queue, verb, how)


def lock_a_running_job(start, notes, folder, queue, verb, how, **environment):
    """Lock the row of a job that uses a verb, or of what waits for it, for two leases."""
    flags = ("--lease", f"{LEASE}s", "--concurrency", "4", "--poll-interval", "0.3s")
    workers = [start(*flags, **environment).wait_until_ready()]
    victim = tasks.do_until_told.using(queue_name=queue).enqueue(folder, verb)
    waiter = tasks.await_by_id.using(queue_name=queue).enqueue(str(victim.pk))
    wait_for("the job to be under way", lambda: notes.read("under way"))
    wait_for("the other to wait", lambda: status_of(waiter) == "WAITING")
    # Another worker, that would rescue it.
    workers.append(start(*flags, **environment).wait_until_ready())

    def lock() -> None:
        row = waiter if verb == "await" else victim
        if how == "signal":
            row.signal("word")
        elif how == "cancel":
            row.cancel(tree=False)
            transaction.set_rollback(True)
        else:
            Job.objects.select_for_update().get(pk=row.pk)

    with locked(lock):
        if verb in ("end", "await"):
            notes.let_go()
        # Longer than the lease.
        assert slowest_of_others(queue, 2 * LEASE) < LEASE
        assert status_of(victim) == "RUNNING"
    notes.let_go()
    wait_for_end(victim, waiter, patience=5)
    assert [fresh(job).status for job in (victim, waiter)] == ["SUCCESSFUL"] * 2
    assert not victim.attempts.exists()
    for worker in workers:
        assert "Rescued" not in worker.log
        worker.stop()


@pytest.mark.parametrize("is_released", [False, True])
def test_a_locked_row_keeps_no_other_job_from_going_back(start, notes, folder, queue, is_released):
    worker = start("--shutdown-timeout", "1s", "--lease", "60s", "--concurrency", "3")
    held = [jobs.hold.using(queue_name=queue).enqueue(folder, f"{place}") for place in range(3)]
    wait_for("the starts", lambda: len(notes.read("start")) == 3)

    with locked(lambda: Job.objects.select_for_update().get(pk=held[1].pk)):
        worker.send(signal.SIGTERM)
        wait_for(
            "the others to go back", lambda: {status_of(job) for job in held[::2]} == {"READY"}
        )
        if not is_released:
            assert worker.wait() == 0

    assert worker.wait() == 0
    # The one goes back too, if that is possible before the worker has ended.
    back = held if is_released else held[::2]
    assert [(fresh(job).status, fresh(job).attempt) for job in back] == [("READY", 0)] * len(back)
    assert not held[0].attempts.exists()
