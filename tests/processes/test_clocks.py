"""Workers on machines whose clocks are wrong: there is one clock, and it is the database's."""

from __future__ import annotations

import signal
from datetime import timedelta
from pathlib import Path

import pytest
from django.utils import timezone

from django_durable.models import Job, Schedule
from tests.processes.harness import fresh, wait_for, wait_for_end
from tests.workerapp import jobs, tasks

LIBRARIES = sorted(Path("/usr").glob("lib*/**/faketime/libfaketimeMT.so.1"))
pytestmark = pytest.mark.skipif(not LIBRARIES, reason="faketime is not installed")
SECOND = timedelta(seconds=1)
SOON = 20
# A busy machine may be late, but not by minutes as the wrong clocks are.
LATE = timedelta(minutes=1)
# The library refuses what `time.sleep` asks of it.
MEND_SLEEP = (
    "import threading, time\ntime.sleep = lambda seconds: threading.Event().wait(seconds)\n"
)


@pytest.fixture(params=["-600", "+600"], ids=["ten minutes slow", "ten minutes fast"])
def shifted(request, tmp_path_factory):
    """The environment of a worker whose clock is wrong; what measures durations is not."""
    mended = tmp_path_factory.mktemp("site")
    (mended / "sitecustomize.py").write_text(MEND_SLEEP)
    return {
        "PYTHONPATH": str(mended),
        "LD_PRELOAD": str(LIBRARIES[0]),
        "FAKETIME": request.param,
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }


@pytest.fixture(autouse=True)
def _no_schedules(transactional_db):
    yield
    Schedule.objects.all().delete()


def test_a_worker_whose_clock_is_wrong_does_all_on_time(start, notes, folder, queue, shifted):
    worker = start("--lease", "3s", "--concurrency", "8", **shifted).wait_until_ready()
    began = timezone.now()
    delayed = jobs.echo.using(queue_name=queue, run_after=2 * SECOND).enqueue("delayed")
    retried = jobs.retry_later.using(queue_name=queue).enqueue(folder, 2.0)
    asleep = tasks.nap.using(queue_name=queue).enqueue(2.0)
    overrun = jobs.async_overrun.using(queue_name=queue).enqueue(folder)
    held = jobs.hold.using(queue_name=queue).enqueue(folder)
    ticking = jobs.noop.schedule("ticking", every=SECOND)

    delayed, retried, asleep, overrun = wait_for_end(delayed, retried, asleep, overrun)
    with worker.explained():
        assert delayed.started_at - began >= 2 * SECOND
        assert delayed.started_at - delayed.run_after < LATE
        assert retried.attempt == 2
        assert 2 * SECOND <= retried.finished_at - retried.started_at < LATE
        assert 2.0 <= asleep.return_value < LATE.total_seconds()
        (attempt,) = overrun.attempts.all()
        assert attempt.error_class == "JobTimeout"
        assert attempt.finished_at - attempt.started_at < LATE
        wait_for("some ticks", lambda: ticking.jobs.count() >= 4)
        for tick in ticking.jobs.all()[1:]:
            assert timedelta(0) <= tick.enqueued_at - tick.scheduled_for < LATE
        # Longer than the lease, and still its own.
        wait_for("the lease", lambda: timezone.now() - began > 5 * SECOND)
        assert (fresh(held).status, fresh(held).attempt) == (Job.Status.RUNNING, 1)
    notes.let_go()
    assert held.result(SOON) == "job"
    worker.stop()


def test_workers_with_wrong_and_right_clocks_rescue_each_other_only_when_due(
    start, notes, folder, queue, shifted
):
    wrong = start("--lease", "3s", **shifted).wait_until_ready()
    job = jobs.hold.using(queue_name=queue).enqueue(folder)
    wait_for("the start", lambda: notes.read("start"))
    right = start("--lease", "3s").wait_until_ready()
    began = timezone.now()
    wait_for("more than a lease", lambda: timezone.now() - began > 5 * SECOND)
    assert (fresh(job).attempt, fresh(job).worker) == (1, wrong.row().name)

    wrong.send_all(signal.SIGKILL)
    killed = timezone.now()
    wait_for("the second start", lambda: len(notes.read("start")) == 2)
    assert fresh(job).claimed_at - killed < LATE

    # And the other way round.
    start("--lease", "3s", **shifted).wait_until_ready()
    right.send_all(signal.SIGKILL)
    killed = timezone.now()
    wait_for("the third start", lambda: len(notes.read("start")) == 3)
    assert timedelta(0) < fresh(job).claimed_at - killed < LATE
    notes.let_go()
    assert job.result(SOON) == "job"
    assert [attempt.outcome for attempt in job.attempts.all()] == ["lost"] * 2
