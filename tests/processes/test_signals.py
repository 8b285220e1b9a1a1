"""Django signals and `on_dead_letter`: what a worker tells after the commits that it reports."""

from __future__ import annotations

import os
import signal
from datetime import timedelta

import pytest
from django.db import connection, transaction

from django_durable import signals
from django_durable.models import DeadLetter, Job
from tests.processes.harness import WorkerProcess, fresh, make_known, wait_for, wait_for_end
from tests.workerapp import jobs
from tests.workerapp.notes import Notes

SOON = 20
ATTEMPT = {"event", "pid", "at", "sender", "job", "status", "attempt"}
TIMES = {"waited", "took"}


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """What the worker of this module sends."""
    return Notes(tmp_path_factory.mktemp("told"))


@pytest.fixture(scope="module")
def worker(transactional_db, told):
    make_known("shared")
    process = WorkerProcess(told.folder, "-q", "shared", SIGNAL_NOTES=str(told.folder))
    try:
        yield process.wait_until_ready()
        process.stop()
    finally:
        process.destroy()


def shared(job_type, **options):
    return job_type.using(queue_name="shared", **options)


def sent(told, job, last: str) -> list[dict]:
    """Return the signals of a job, once the last one has come."""
    wait_for(f"{last} of {job}", lambda: told.read(last, job=str(job.pk)))
    return told.read(job=str(job.pk))


def test_signals_of_a_success(worker, told):
    job = shared(jobs.work).enqueue(str(told.folder), "timed", 0.2)
    job.result(SOON)

    started, succeeded = sent(told, job, "job_succeeded")

    assert [started["event"], succeeded["event"]] == ["job_started", "job_succeeded"]
    assert set(started) == ATTEMPT
    assert set(succeeded) == ATTEMPT | TIMES
    assert (started["sender"], started["attempt"]) == ("Job", 1)
    assert (succeeded["status"], succeeded["attempt"]) == (Job.Status.SUCCESSFUL, 1)
    assert 0.2 <= succeeded["took"] < 5
    assert 0 <= succeeded["waited"] < 10


def test_signals_of_failures_up_to_the_death(worker, told, notes, folder):
    job = shared(jobs.flaky, max_attempts=2).enqueue(folder)
    wait_for_end(job)

    heard = sent(told, job, "job_dead_lettered")

    # The second attempt may start before the failure of the first has been told.
    assert [note["event"] for note in heard if note.get("attempt") != 2] == [
        "job_started",
        "job_failed",
        "job_dead_lettered",
    ]
    assert [note["event"] for note in heard if note.get("attempt") != 1] == [
        "job_started",
        "job_failed",
        "job_dead_lettered",
    ]
    first, second = told.read("job_failed", job=str(job.pk))
    assert set(first) == ATTEMPT | TIMES | {"error", "will_retry"}
    assert [(n["attempt"], n["will_retry"]) for n in (first, second)] == [(1, True), (2, False)]
    assert first["error"] == {
        "class": "tests.workerapp.jobs.FlakyError",
        "message": "failure 1",
    }
    assert (heard[-1]["dead_letter"], heard[-1]["status"]) == ("exhausted", Job.Status.DEAD)
    wait_for("the hook", lambda: notes.read("hook", job=str(job.pk), reason="exhausted"))


def test_signals_of_a_cancelled_run(worker, told, notes, folder):
    job = shared(jobs.async_hold).enqueue(folder)
    wait_for("the start", lambda: notes.read("start"))
    job.cancel("enough")

    heard = sent(told, job, "job_cancelled")

    assert [note["event"] for note in heard] == ["job_started", "job_cancelled"]
    assert (heard[-1]["reason"], heard[-1]["status"]) == ("enough", Job.Status.CANCELLED)


@pytest.mark.parametrize(("kind", "reason"), [("CancelJob", "not needed"), ("reject", "by itself")])
def test_signals_of_jobs_that_cancel_themselves(worker, told, kind, reason):
    job_type = jobs.raising if kind == "CancelJob" else jobs.cancel_itself
    job = shared(job_type).enqueue(kind)

    heard = sent(told, job, "job_cancelled")

    assert [note["event"] for note in heard] == ["job_started", "job_cancelled"]
    assert heard[-1]["reason"] == reason


def test_signals_of_a_timeout(worker, told, folder):
    job = shared(jobs.async_overrun).enqueue(folder)

    heard = sent(told, job, "job_dead_lettered")

    assert [note["event"] for note in heard] == ["job_started", "job_failed", "job_dead_lettered"]
    assert heard[1]["error"]["class"] == "JobTimeout"
    assert not told.read("lease_lost", job=str(job.pk))


def test_a_child_that_dies_is_told_of_by_the_next(worker, told, notes, folder):
    job = shared(jobs.hold, max_attempts=1).enqueue(folder)
    wait_for("the start", lambda: notes.read("start"))
    sent(told, job, "job_started")
    os.kill(worker.child(), signal.SIGKILL)

    heard = sent(told, job, "job_dead_lettered")

    assert [note["event"] for note in heard] == ["job_started", "job_failed", "job_dead_lettered"]
    assert heard[1]["error"]["class"] == "LeaseLost"
    assert "was killed by signal 9" in heard[1]["error"]["message"]
    assert heard[2]["dead_letter"] == "lost"
    wait_for("the hook", lambda: notes.read("hook", job=str(job.pk), reason="lost"))


def test_each_cause_of_death_has_its_hook(worker, told, notes, folder):
    causes = {
        "permanent": shared(jobs.die).enqueue(folder, "permanent"),
        "unstorable": shared(jobs.die).enqueue(folder, "unstorable"),
        "exhausted": shared(jobs.die).enqueue(folder, "exhausted"),
        "undecodable": undecodable(folder),
    }
    wait_for_end(*causes.values())

    for reason, job in causes.items():
        wait_for(f"the hook of {reason}", lambda job=job: notes.read("hook", job=str(job.pk)))
        (note,) = notes.read("hook", job=str(job.pk))
        assert note["reason"] == reason == fresh(job).dead_letter.reason


def undecodable(folder: str) -> Job:
    job = shared(jobs.die, run_after=timedelta(hours=1)).enqueue(folder, "undecodable")
    with connection.cursor() as cursor:
        cursor.execute("UPDATE durable_job SET kwargs = '[1' WHERE id = %s", [job.pk])
    Job.all_objects.filter(pk=job.pk).first().run_now()
    return job


@pytest.mark.parametrize("kind", ["ValueError", "SystemExit"])
def test_what_a_receiver_or_a_hook_raises_changes_nothing(worker, told, notes, folder, kind):
    job = shared(jobs.die_badly, metadata={"raise": kind}).enqueue(folder, kind)
    wait_for_end(job)

    sent(told, job, "job_dead_lettered")
    wait_for("the hook", lambda: notes.read("hook"))
    after = shared(jobs.noop).enqueue()
    after.result(SOON)

    sent(told, after, "job_succeeded")
    assert len(notes.read("hook")) == 1
    assert kind in worker.log


def test_a_slow_hook_delays_no_job(worker, notes, folder):
    job = shared(jobs.die_slowly).enqueue(folder)
    wait_for("the hook", lambda: notes.read("hook"))

    assert shared(jobs.echo).enqueue(1).result(SOON) == 1
    assert not notes.read("hook ends")
    notes.let_go()
    wait_for("the end of the hook", lambda: notes.read("hook ends"))
    assert fresh(job).status == Job.Status.DEAD


def test_enqueueing_sends_its_signal_after_the_commit(transactional_db, queue):
    heard = []

    def receive(sender, job, **kwargs):
        heard.append((sender, job.pk, transaction.get_connection().in_atomic_block))

    signals.job_enqueued.connect(receive)
    try:
        call = jobs.noop.using(queue_name=queue, idempotency_key=queue)
        with transaction.atomic():
            job = call.enqueue()
            assert heard == []
        call.enqueue()
        with transaction.atomic():
            jobs.noop.using(queue_name=queue).enqueue()
            transaction.set_rollback(True)
    finally:
        signals.job_enqueued.disconnect(receive)

    assert heard == [(Job, job.pk, False)]
    job.cancel()


def test_a_job_enqueued_by_a_job_sends_its_signal_from_the_worker(worker, told, folder):
    shared(jobs.enqueue_next).enqueue(folder, ["shared"]).result(SOON)

    (note,) = wait_for("the signal", lambda: told.read("job_enqueued"))

    assert Job.objects.get(pk=note["job"]).args == [folder, []]
    assert not DeadLetter.objects.filter(job=note["job"]).exists()
