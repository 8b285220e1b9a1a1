"""Behind PgBouncer in transaction mode: all passes, by polling or with a way past the pooler."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from datetime import timedelta

import psycopg
import pytest
from django.db import connection

from django_durable.models import Job
from tests.processes.harness import CHECKOUT, database_url, wait_for, wait_for_end
from tests.processes.pooler import PROGRAM, PgBouncer
from tests.processes.test_locks import lock_a_running_job
from tests.workerapp import jobs, tasks

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="PgBouncer is not installed")
SOON = 20
FLAGS = ("--lease", "3s", "--concurrency", "6")
OPTIONS = "disable_server_side_cursors=true"


@pytest.fixture(scope="module")
def pooler(transactional_db):
    with PgBouncer(database_url()) as running:
        yield running


@pytest.fixture(params=["polling", "deaf", "listening"])
def environment(request, pooler):
    """What tells a worker to go through the pooler, with and without a way past it."""
    environment = {
        "DATABASE_URL": f"{pooler.url}?{OPTIONS}",
        "DURABLE_NOTIFY": str(request.param != "polling"),
        "DURABLE_POLL_INTERVAL": "0.3",
    }
    if request.param == "listening":
        environment["DIRECT_DATABASE_URL"] = database_url()
    return environment


def enqueue_through(environment, queue, job_type, *args):
    """Enqueue from a process that reaches the database through the pooler only."""
    command = ["durable", "enqueue", job_type.name, "--args", json.dumps(args)]
    done = subprocess.run(
        [sys.executable, "manage.py", *command, "--queue-name", queue, "--json"],
        check=False,
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings", **environment},
    )
    assert done.returncode == 0, done.stderr
    return Job.objects.get(pk=json.loads(done.stdout)["id"])


def run_all(start, notes, folder, queue, environment, scale):
    """Run a bit of everything, kill a child and a whole worker meanwhile."""
    doomed = start(*FLAGS, "--queue-name", f"{queue},default", **environment)
    enqueued = [enqueue_through(environment, queue, jobs.echo, "through")]
    plain = [
        call.using(queue_name=queue, max_attempts=None).enqueue(folder, str(n), 0.05)
        for n in range(20 * scale)
        for call in (jobs.work, jobs.async_work)
    ]
    doomed.wait_until_ready()
    os.kill(doomed.child(), signal.SIGKILL)
    naps = [tasks.nap.using(queue_name=queue).enqueue(1.0) for _ in range(5 * scale)]
    trees = [tasks.tree.using(queue_name=queue).enqueue(3, 4) for _ in range(scale)]
    steps = [
        tasks.through_every_point.using(queue_name=queue).enqueue(folder) for _ in range(scale)
    ]
    flaky = [jobs.flaky.using(queue_name=queue).enqueue(folder, 2) for _ in range(scale)]
    wait_for("some ends", lambda: len(notes.read("end")) > 5 * scale)
    doomed.send_all(signal.SIGKILL)
    worker = start(*FLAGS, "--queue-name", f"{queue},default", **environment)
    made = [*enqueued, *plain, *naps, *trees, *steps, *flaky]
    with worker.explained():
        ended = wait_for_end(*made, patience=30 + 10 * scale)
        assert Counter(job.status for job in ended) == {Job.Status.SUCCESSFUL: len(made)}
        assert {job.result() for job in enqueued} == {"through"}
        assert {job.result() for job in trees} == {sum(n * n for n in range(12))}
        assert all(nap.result() >= 1.0 for nap in naps)
        assert "Traceback" not in worker.log
    worker.stop()


def test_all_passes_behind_a_pooler(start, notes, folder, queue, environment):
    run_all(start, notes, folder, queue, environment, scale=1)


SLOW = [pytest.param(verb, marks=pytest.mark.stress) for verb in ("progress", "await")]


@pytest.mark.parametrize("verb", ["step", "end", *SLOW])
def test_who_locks_a_running_job_holds_up_nothing_else(start, notes, folder, queue, pooler, verb):
    url = f"{pooler.url}?{OPTIONS}"
    lock_a_running_job(start, notes, folder, queue, verb, "signal", DATABASE_URL=url)


@pytest.mark.stress
def test_much_passes_behind_a_pooler(start, notes, folder, queue, environment):
    run_all(start, notes, folder, queue, environment, scale=10)


def test_a_worker_listens_past_the_pooler(start, queue, pooler):
    start(
        *("--poll-interval", "60s"),
        DATABASE_URL=f"{pooler.url}?{OPTIONS}",
        DIRECT_DATABASE_URL=database_url(),
    ).wait_until_ready()
    # The first one may be found by the look of the start.
    for number in range(3):
        assert jobs.echo.using(queue_name=queue).enqueue(number).result(SOON) == number


def test_no_session_of_the_pool_is_left_listening(start, queue, pooler):
    """It would hand the notifications of others to whoever has it next."""
    worker = start("--poll-interval", "0.2s", DATABASE_URL=f"{pooler.url}?{OPTIONS}")
    worker.wait_for_line("pass no pooler")

    assert jobs.echo.using(queue_name=queue).enqueue(1).result(SOON) == 1
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE datname = current_database() AND query LIKE 'LISTEN durable_ready%'"
        )
        assert cursor.fetchone()[0] == 0
    worker.stop()


def test_a_cancel_and_a_signal_pass_by_polling(start, notes, folder, queue, environment):
    worker = start("--lease", "4s", **environment)
    running = jobs.check_until_cancelled.using(queue_name=queue).enqueue(folder)
    approval = tasks.approve.using(queue_name=queue).enqueue(folder)
    wait_for("the start", lambda: notes.read("start"))
    approval.signal("approval", "yes")
    running.cancel("enough")
    assert approval.result(SOON)["payload"] == "yes"
    (ended,) = wait_for_end(running)
    assert ended.status == Job.Status.CANCELLED
    assert ended.finished_at - ended.started_at < timedelta(seconds=10)
    worker.stop()


def test_a_worker_waits_for_a_pooler_that_takes_no_more_clients(start, queue):
    with PgBouncer(database_url(), clients=1) as full:
        taker = psycopg.connect(full.url)
        worker = start(DATABASE_URL=f"{full.url}?{OPTIONS}", DIRECT_DATABASE_URL=database_url())
        wait_for("the refusal", lambda: "no more connections allowed" in worker.log)
        taker.close()
        assert worker.process.poll() is None
        worker.stop()
