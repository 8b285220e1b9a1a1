"""The flags of `manage.py worker`, and what it says when it can't start."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import timedelta

import psycopg
import pytest
from django.core.management import CommandError, call_command
from django.test import override_settings

from django_durable.models import Job, Worker
from tests.processes.harness import (
    CHECKOUT,
    database_url,
    fresh,
    make_known,
    status_of,
    wait_for,
    wait_for_end,
)
from tests.workerapp import jobs

SOON = 20


def most_at_once(notes) -> int:
    """Return how many ran at the same time at most, by their own notes."""
    changes = [(note["at"], 1) for note in notes.read("start")]
    changes += [(note["at"], -1) for note in notes.read("end")]
    running = most = 0
    for _at, change in sorted(changes):
        running += change
        most = max(most, running)
    return most


@pytest.mark.parametrize("kinds", [["work"], ["async_work"], ["work", "async_work"]])
def test_concurrency_is_reached_and_never_passed(start, notes, folder, queue, kinds):
    types = [getattr(jobs, kind).using(queue_name=queue) for kind in kinds]
    made = [types[n % len(types)].enqueue(folder, str(n), 0.15) for n in range(15)]

    start("--concurrency", "3", "--batch").wait()

    assert [status_of(job) for job in made] == [Job.Status.SUCCESSFUL] * 15
    assert most_at_once(notes) == 3


def test_concurrency_is_that_of_each_child(start, notes, folder, queue):
    made = [jobs.work.using(queue_name=queue).enqueue(folder, str(n), 0.3) for n in range(24)]

    start("--processes", "2", "--concurrency", "2", "--batch").wait()

    assert [status_of(job) for job in made] == [Job.Status.SUCCESSFUL] * 24
    assert most_at_once(notes) == 4
    assert len({note["pid"] for note in notes.read("start")}) == 2


def test_concurrency_of_one_runs_one_after_the_other(start, notes, folder, queue):
    for number in range(5):
        jobs.work.using(queue_name=queue).enqueue(folder, str(number), 0.02)

    start("--concurrency", "1", "--batch").wait()

    assert most_at_once(notes) == 1
    assert len(notes.read("end")) == 5


def test_a_worker_serves_the_queues_it_is_given(start, queue):
    names = [f"{queue}-{letter}" for letter in "abcd"]
    a, b, c, d = (jobs.noop.using(queue_name=name).enqueue() for name in names)

    worker = start(f"--queue-name={names[0]},{names[1]}", "--queue-name", names[2], "--batch")

    assert worker.wait() == 0
    assert [status_of(job) for job in (a, b, c, d)] == ["SUCCESSFUL"] * 3 + ["READY"]
    assert d.attempt == 0


def test_a_worker_leaves_out_the_queues_it_is_told_to(start, queue):
    names = [f"{queue}-{letter}" for letter in "abc"]
    a, b, c = (jobs.noop.using(queue_name=name).enqueue() for name in names)

    worker = start("--queue-name=*", "--exclude-queue", f"{names[1]},{names[2]}", "--batch")

    assert worker.wait() == 0
    assert [status_of(job) for job in (a, b, c)] == ["SUCCESSFUL", "READY", "READY"]


def test_a_worker_that_would_serve_no_queue_ends_the_command(start, queue):
    line = refused(start("--exclude-queue", f"{queue},other"))

    assert f"none of the queues {queue}" in line


def test_a_worker_runs_the_job_types_it_is_given(start, queue):
    echo = jobs.echo.using(queue_name=queue).enqueue(1)
    noop = jobs.noop.using(queue_name=queue).enqueue()

    worker = start("--job", jobs.echo.name, "--batch")

    assert worker.wait() == 0
    assert (status_of(echo), status_of(noop)) == ("SUCCESSFUL", "READY")


def test_an_unknown_job_type_ends_the_command(start):
    worker = start("--job", "tests.nowhere.nothing")

    assert worker.wait() == 1
    assert "tests.nowhere.nothing" in worker.log
    assert "Traceback" not in worker.log


COUNTS = ["--processes", "--concurrency", "--max-jobs", "--max-rss"]
TIMES = [
    "--poll-interval",
    "--lease",
    "--shutdown-timeout",
    "--stall-timeout",
    "--database-timeout",
    "--max-seconds",
]


@pytest.mark.parametrize(
    "args",
    [
        ["--concurrency", "0"],
        ["--concurrency", "many"],
        ["--lease", "0"],
        ["--lease", "soon"],
        ["--poll-interval", "0"],
        ["--database-timeout", "0.5"],
        *([flag, text] for flag in TIMES for text in ("nan", "inf", "-1", "9999d")),
        *([flag, text] for flag in COUNTS for text in ("nan", "inf", "-1", "0", "9" * 30)),
        ["--name", "x" * 201],
        ["--nonsense"],
    ],
)
def test_a_wrong_flag_ends_the_command_with_a_sentence(args):
    with pytest.raises(CommandError, match=args[0]):
        call_command("worker", *args)


@override_settings(USE_TZ=False)
def test_a_project_without_time_zones_ends_the_command_though_checks_are_skipped(
    transactional_db,
):
    with pytest.raises(CommandError, match="Set USE_TZ = True"):
        call_command("worker", "--batch", "--skip-checks")


def test_batch_ends_when_nothing_is_due_whatever_the_outcomes(start, notes, folder, queue):
    dead = jobs.flaky.using(queue_name=queue, max_attempts=2).enqueue(folder)
    done = jobs.work.using(queue_name=queue).enqueue(folder, "slow", 0.5)
    later = jobs.noop.using(queue_name=queue, run_after=timedelta(hours=1)).enqueue()
    retried = jobs.retry_later.using(queue_name=queue).enqueue(folder, 3600)

    worker = start("--batch")

    assert worker.wait() == 0
    states = [status_of(job) for job in (dead, done, later, retried)]
    assert states == ["DEAD", "SUCCESSFUL", "READY", "READY"]
    assert (fresh(later).attempt, fresh(retried).attempt) == (0, 1)
    # The hook is called before the worker goes.
    assert [note["job"] for note in notes.read("hook")] == [str(dead.pk)]


@pytest.mark.parametrize("notify", ["0", "1"])
def test_batch_runs_what_its_jobs_enqueue_into_new_queues(start, notes, folder, queue, notify):
    names = [f"{queue}-{number}" for number in range(6)]
    jobs.enqueue_next.using(queue_name=names[0]).enqueue(folder, names[1:])
    make_known(*names)

    worker = start(f"--queue-name={','.join(names)}", "--batch", DURABLE_NOTIFY=notify)

    assert worker.wait() == 0
    assert [note["left"] for note in notes.read("start")] == [5, 4, 3, 2, 1, 0]


def test_batch_with_nothing_to_do_ends_at_once(start):
    assert start("--batch").wait() == 0


def test_the_row_of_a_worker_tells_what_it_is_and_goes_with_it(start, queue):
    worker = start("--name", "lively", "--concurrency", "7", "--exclude-queue", "x")
    row = worker.row()

    assert (row.name, row.pid, row.slots, row.draining) == ("lively", worker.pid, 7, False)
    assert row.queues == [queue]
    assert jobs.noop.name in row.job_names
    worker.stop()
    assert not Worker.objects.filter(pk=row.pk).exists()


def test_the_worker_greets_with_what_it_serves(start, queue):
    line = start("--concurrency", "4", "--lease", "12s").wait_for_line("django_durable ")

    for part in (queue, "4 slots", "PostgreSQL", "lease 12 s", "notifications"):
        assert part in line


def test_attempts_name_their_worker(start, folder, queue):
    start("--name", "culprit", "--batch")
    job = jobs.flaky.using(queue_name=queue, max_attempts=1).enqueue(folder)

    (job,) = wait_for_end(job)

    assert job.attempts.get().worker == "culprit"


def test_json_logs_are_one_document_a_line(start, folder, queue):
    job = jobs.flaky.using(queue_name=queue, max_attempts=2).enqueue(folder, 1)
    worker = start("--log-format", "json", "--batch")
    assert worker.wait() == 0

    lines = [json.loads(line) for line in worker.log.splitlines() if line.startswith("{")]

    ours = [line for line in lines if line.get("job_id") == str(job.pk)]
    assert [(line["level"], line["attempt"]) for line in ours] == [("WARNING", 1), ("INFO", 2)]
    assert all(line["queue_name"] == queue for line in ours)


# What can't start.


def manage(*args: str, url: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "manage.py", *args],
        check=False,
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "DATABASE_URL": url, "DJANGO_SETTINGS_MODULE": "tests.settings"},
    )


def refused(worker) -> str:
    """Return the sentence of a worker that could not start."""
    assert worker.wait() == 1
    assert "Traceback" not in worker.log
    (line,) = worker.log.strip().splitlines()
    return line


def test_a_wrong_password_ends_the_command(start):
    line = refused(start(DATABASE_URL=database_url(password="wrong")))

    assert "password authentication failed" in line


def test_a_missing_database_ends_the_command(start):
    line = refused(start(DATABASE_URL=database_url("nowhere")))

    assert 'database "nowhere" does not exist' in line


def test_sqlite_ends_the_command(start, tmp_path):
    line = refused(start(DATABASE_URL=f"sqlite:///{tmp_path / 'db.sqlite3'}"))

    assert "is SQLite; durable jobs need PostgreSQL" in line


def test_missing_migrations_end_the_command(start, queue):
    name = f"empty_{queue.replace('-', '_')}"
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name}")
        try:
            line = refused(start(DATABASE_URL=database_url(name)))
        finally:
            admin.execute(f"DROP DATABASE {name} WITH (FORCE)")

    assert "migrate" in line


def test_a_worker_waits_for_a_database_that_is_not_up_yet(start, private_server):
    url = private_server.url
    assert manage("migrate", "--verbosity", "0", url=url).returncode == 0
    private_server.stop()

    worker = start("--queue-name=*", DATABASE_URL=url)
    worker.wait_for_line("waits for the database")
    private_server.start()
    worker.wait_for_line("django_durable ")

    enqueued = manage("durable", "enqueue", jobs.echo.name, "--args", "[1]", url=url)
    assert enqueued.returncode == 0, enqueued.stderr
    worker.wait_for_line("succeeded")
    assert len(worker.log.splitlines()) <= 6
    worker.stop()


def test_a_worker_that_waits_for_its_database_can_be_stopped(start, private_server):
    url = private_server.url
    private_server.stop()
    worker = start(DATABASE_URL=url)
    worker.wait_for_line("waits for the database")

    worker.stop()


def test_two_workers_of_one_name_are_two(start, queue):
    first, second = start("--name", "twin"), start("--name", "twin")
    twins = Worker.objects.filter(name="twin")
    wait_for("two rows", lambda: twins.count() == 2)
    rows = list(twins)

    assert len({row.incarnation for row in rows}) == 2
    first.stop()
    job = jobs.echo.using(queue_name=queue).enqueue("alive")
    assert job.result(SOON) == "alive"
    assert twins.get().pid == second.pid


def test_a_batch_says_what_it_left_alone(start, queue):
    job = jobs.echo.using(queue_name=queue).enqueue(1)
    Job.all_objects.filter(pk=job.pk).update(name="gone.echo")

    worker = start("--batch")

    assert worker.wait() == 0
    assert f"1 job of gone.echo in queue '{queue}' left alone: this project defines" in worker.log


@pytest.mark.parametrize(
    "flag", ["--queue-name=", "--exclude-queue=", "--job=,", "--capability= ", "--name="]
)
def test_a_flag_without_a_value_is_refused(start, flag):
    worker = start("--queue-name=*", flag)

    assert worker.wait() == 2
    assert "is a variable not set?" in worker.log


@pytest.mark.parametrize("flag", ["--queue-name", "--job", "--capability", "--name"])
def test_a_name_that_the_database_can_not_store_is_refused(start, flag):
    worker = start("--queue-name=*", os.fsdecode(flag.encode() + b"=caf\xe9"))

    assert worker.wait() == 2
    assert "has characters that PostgreSQL can't store" in worker.log


def test_a_batch_does_not_reload(start):
    assert "no use with --batch" in refused(start("--batch", "--reload"))
