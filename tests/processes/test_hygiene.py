"""What a job leaves behind harms neither its worker nor the next job."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import Group
from django.db import connection

from django_durable.models import Job
from tests.processes.harness import (
    WorkerProcess,
    database_url,
    fresh,
    make_known,
    sessions,
    wait_for,
    wait_for_end,
)
from tests.workerapp import jobs

SOON = 20
SLOTS = 4


@pytest.fixture(scope="module")
def worker(transactional_db, tmp_path_factory):
    """One whose connections persist, so that jobs do meet what others left."""
    make_known("shared")
    process = WorkerProcess(
        tmp_path_factory.mktemp("worker"),
        *("-q", "shared", "--concurrency", str(SLOTS)),
        DATABASE_URL=database_url(query="conn_max_age=600"),
    )
    try:
        yield process.wait_until_ready()
        process.stop()
    finally:
        process.destroy()


def shared(job_type, **options):
    return job_type.using(queue_name="shared", **options)


def in_transaction() -> int:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
            " AND pid <> pg_backend_pid() AND state LIKE 'idle in transaction%'"
        )
        return cursor.fetchone()[0]


LEFT_BEHIND = [
    "open transaction",
    "autocommit off",
    "failed statement",
    "raw begin",
    "closed",
    "terminated",
]


@pytest.mark.parametrize("how", LEFT_BEHIND)
@pytest.mark.parametrize(
    ("spoil", "session"),
    [(jobs.spoil_connection, jobs.session), (jobs.async_spoil_connection, jobs.async_session)],
    ids=["plain", "async"],
)
def test_the_next_job_finds_a_clean_connection(worker, folder, how, spoil, session):
    name = f"{spoil.name} {how}"

    assert shared(spoil).enqueue(how, name).result(SOON) == how

    # As many as there are threads that could have been spoilt.
    for job in [shared(session).enqueue() for _ in range(2 * SLOTS)]:
        _pid, autocommit, in_block = job.result(SOON)
        assert (autocommit, in_block) == (True, False)
    # What was not committed is gone, and what is made now stays.
    assert not Group.objects.filter(name=name).exists()
    wait_for("no open transaction", lambda: in_transaction() == 0)


def test_the_next_job_finds_the_surroundings_of_the_project(worker):
    before = shared(jobs.surroundings).enqueue().result(SOON)
    changed = [shared(jobs.change_surroundings).enqueue() for _ in range(2 * SLOTS)]
    assert all(job.result(SOON) == ["de", "Asia/Tokyo", 3] for job in changed)

    for kind in (jobs.surroundings, jobs.async_surroundings):
        for job in [shared(kind).enqueue() for _ in range(2 * SLOTS)]:
            assert job.result(SOON) == before


def test_a_job_that_closes_the_standard_streams_harms_nobody(start, queue):
    worker = start()
    jobs.close_streams.using(queue_name=queue).enqueue().result(SOON)
    (failed,) = wait_for_end(jobs.raising.using(queue_name=queue).enqueue("ValueError"))
    assert (failed.status, fresh(failed).attempts.get().outcome) == ("DEAD", "failed")
    worker.wait_for_line(f"{failed.name} {failed.pk} is dead")
    worker.stop()
    assert "Traceback" not in worker.log


def test_connections_persist_where_the_project_says_so(worker):
    pids = {shared(jobs.session).enqueue().result(SOON)[0] for _ in range(4)}

    assert len(pids) <= SLOTS


def test_no_transaction_is_open_while_jobs_run(worker, notes, folder):
    made = [shared(jobs.hold_connected).enqueue(folder, label) for label in "ab"]
    made.append(shared(jobs.async_hold).enqueue(folder, "c"))
    wait_for("the starts", lambda: len(notes.read("start")) == 3)

    wait_for("no open transaction", lambda: in_transaction() == 0)
    notes.let_go()
    wait_for_end(*made)


@pytest.mark.parametrize(
    ("age", "last"),
    [(0, jobs.async_session), (600, jobs.session)],
    ids=["plain and async", "persistent"],
)
def test_connections_stay_within_the_formula(start, notes, folder, queue, age, last):
    url = database_url(query=f"conn_max_age={age}")
    base = sessions()
    start("--concurrency", str(SLOTS), DATABASE_URL=url)
    held = jobs.hold_connected.using(queue_name=queue)
    made = [held.enqueue(folder, str(number)) for number in range(SLOTS)]
    failing = jobs.flaky.using(queue_name=queue).enqueue(folder)
    wait_for("the starts", lambda: len(notes.read("start")) == SLOTS)
    most = sessions()
    notes.let_go()
    for _ in range(20):
        made += [jobs.session.using(queue_name=queue).enqueue()]
        made += [last.using(queue_name=queue).enqueue()]
    living = Job.objects.in_queue(queue).exclude(status__in=["SUCCESSFUL", "DEAD"])
    while living.exists():
        most = max(most, sessions())

    assert most - base <= SLOTS + 3 + 2
    assert {job.status for job in wait_for_end(*made)} == {"SUCCESSFUL"}
    assert wait_for_end(failing)[0].status == Job.Status.DEAD
    if not age:
        # Nothing but what the worker itself needs.
        wait_for("the baseline", lambda: sessions() - base <= 3 + 2)


@pytest.mark.parametrize("age", [0, 600], ids=["connecting anew", "persistent"])
@pytest.mark.parametrize("count", [100, pytest.param(4000, marks=pytest.mark.stress)])
def test_connections_stay_within_the_formula_for_mixed_jobs_in_two_children(
    start, queue, age, count
):
    url = database_url(query=f"conn_max_age={age}")
    base = sessions()
    worker = start(*("--processes", "2", "--concurrency", str(SLOTS), "-v", "0"), DATABASE_URL=url)
    kinds = [jobs.session, jobs.async_session, jobs.echo]
    for kind in kinds:
        args = (1,) if kind is jobs.echo else ()
        kind.using(queue_name=queue).enqueue_many([(args, {})] * count)
    living = Job.objects.in_queue(queue).exclude(status="SUCCESSFUL")
    most = 0
    while living.exists():
        most = max(most, sessions())

    # One for async code is counted among the slots.
    assert most - base <= 2 * (SLOTS + 3) + 2
    wait_for("the baseline", lambda: sessions() - base <= 2 * (SLOTS if age else 0) + 2 * 3 + 2)
    worker.stop()
    wait_for("the end of all", lambda: sessions() <= base)


def test_a_message_of_5_mb_and_a_job_after_it(worker):
    job = shared(jobs.raising).enqueue("long message")

    (job,) = wait_for_end(job)

    assert len(job.dead_letter.message) <= 10_000
    assert shared(jobs.echo).enqueue(1).result(SOON) == 1


def test_a_job_that_changes_its_process_stops_nothing(start, queue):
    worker = start()
    refused = jobs.change_process.using(queue_name=queue).enqueue().result(SOON)

    # Python and the system refuse some of it.
    assert {"signal", "setsid"} <= set(refused)
    assert jobs.echo.using(queue_name=queue).enqueue(1).result(SOON) == 1
    assert jobs.async_noop.using(queue_name=queue).enqueue().result(SOON) is None
    worker.stop()


@pytest.mark.parametrize("first", [0, 3], ids=["with the standard ones", "all others"])
def test_a_job_that_closes_all_descriptors_is_recorded_and_stops_no_worker(start, queue, first):
    worker = start("--lease", "4s")
    job = jobs.close_descriptors.using(queue_name=queue, max_attempts=2)
    job = job.enqueue(first, 200)

    (job,) = wait_for_end(job)

    assert job.status in (Job.Status.SUCCESSFUL, Job.Status.DEAD)
    assert jobs.echo.using(queue_name=queue).enqueue(1).result(SOON) == 1
    worker.stop()


def test_a_job_that_closes_the_standard_descriptors_is_successful(start, queue):
    worker = start("-v", "3")
    job = jobs.close_descriptors.using(queue_name=queue).enqueue(0, 3)

    assert job.result(SOON) == "closed"
    for number in range(10):
        assert jobs.session.using(queue_name=queue).enqueue().result(SOON)
        assert jobs.echo.using(queue_name=queue).enqueue(number).result(SOON) == number
    assert fresh(job).attempt == 1
    worker.stop()
