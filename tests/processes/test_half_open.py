"""Connections that are there and say nothing: noticed in time, and no hindrance to an end."""

from __future__ import annotations

import signal
import threading
import time
from urllib.parse import urlsplit

import pytest
from django.db import connection, transaction

from django_durable.models import Job
from tests.processes.harness import database_url, fresh, wait_for, wait_for_end
from tests.processes.proxy import SwallowingProxy
from tests.workerapp import jobs

SOON = 30


@pytest.fixture
def proxy(transactional_db):
    server = urlsplit(database_url())
    running = SwallowingProxy(server.hostname, server.port)
    yield running
    running.close()


@pytest.fixture
def through(proxy):
    """The environment of a worker behind the proxy."""
    return {"DATABASE_URL": database_url(host=f"127.0.0.1:{proxy.port}", query="connect_timeout=2")}


def test_swallowed_connections_are_given_up_and_no_attempt_is_charged(
    start, notes, folder, queue, proxy, through
):
    worker = start("--lease", "24s", "--database-timeout", "3s", **through)
    held = [
        jobs.hold.using(queue_name=queue).enqueue(folder, "plain"),
        jobs.async_hold.using(queue_name=queue).enqueue(folder, "loop"),
    ]
    wait_for("the starts", lambda: len(notes.read("start")) == 2)
    assert proxy.swallow() >= 3
    swallowed_at = time.monotonic()
    new = jobs.echo.using(queue_name=queue).enqueue("found")

    # The timeout, a cancel in vain, the cut, and the next poll.
    with worker.explained():
        assert new.result(SOON) == "found"
        assert time.monotonic() - swallowed_at < 3 + 2 + 5
    worker.wait_for_line("has not answered the claimer")
    worker.wait_for_line("has not answered the renewer")
    # The listener asks when it has heard nothing for some time, and listens again.
    worker.wait_for_line("Listening again")
    notes.let_go()
    for job in wait_for_end(*held):
        assert (job.status, job.attempt) == (Job.Status.SUCCESSFUL, 1)
        assert job.attempts.count() == 0
    worker.stop()


def test_an_end_is_recorded_once_though_its_answer_was_swallowed(
    start, notes, folder, queue, proxy, through
):
    worker = start("--lease", "24s", "--database-timeout", "3s", **through)
    held = jobs.hold.using(queue_name=queue).enqueue(folder)
    wait_for("the start", lambda: notes.read("start"))
    proxy.swallow(all_new=True)
    notes.let_go()
    wait_for("the end", lambda: notes.read("end"))
    worker.wait_for_line("waits for the database")
    assert fresh(held).status == Job.Status.RUNNING
    proxy.heal()

    (held,) = wait_for_end(held)
    assert (held.status, held.attempt) == (Job.Status.SUCCESSFUL, 1)
    assert len(notes.read("start")) == 1
    worker.stop()


def test_a_worker_that_gets_no_answer_ends_in_time(start, notes, folder, queue, proxy, through):
    worker = start("--shutdown-timeout", "2s", **through)
    jobs.hold.using(queue_name=queue).enqueue(folder)
    wait_for("the start", lambda: notes.read("start"))
    proxy.swallow(all_new=True)
    asked_at = time.monotonic()
    worker.send(signal.SIGTERM)

    assert worker.wait() == 0
    # The timeout, and as long as the last writes may take.
    assert time.monotonic() - asked_at < 2 + 5 + 4
    assert not worker.family()


def test_a_worker_that_gets_no_answer_at_its_start_can_be_stopped(start, proxy, through):
    proxy.swallow(all_new=True)
    patient = through["DATABASE_URL"].replace("connect_timeout=2", "connect_timeout=60")
    worker = start(DATABASE_URL=patient)
    wait_for("it to connect", lambda: proxy.swallow(all_new=True) >= 1)

    worker.send(signal.SIGTERM)

    assert worker.wait(10) == 0
    assert not worker.family()


def test_a_lock_that_is_held_for_long_is_only_waited_for(start, folder, queue):
    worker = start("--lease", "24s", "--database-timeout", "1s")
    job = jobs.work.using(queue_name=queue).enqueue(folder, "locked", 0.5)
    wait_for("the start", lambda: fresh(job).status == Job.Status.RUNNING)
    with transaction.atomic():
        Job.objects.select_for_update().get(pk=job.pk)
        # Several times what the database has to answer: no statement of the worker waits so long.
        threading.Event().wait(5)
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
                " AND wait_event_type = 'Lock'"
            )
            # None is left behind by a cut.
            assert cursor.fetchone()[0] <= 1
    (job,) = wait_for_end(job)
    assert (job.status, job.attempt) == (Job.Status.SUCCESSFUL, 1)
    assert "has not answered" not in worker.log
    worker.stop()
