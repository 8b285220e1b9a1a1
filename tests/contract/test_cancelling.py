"""Contract, section 4: `cancel`, and what becomes of jobs that run meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection

from django_durable import (
    CancelJob,
    CancelRequested,
    JobContext,
    PermanentFailure,
    RejectJob,
    RetryJob,
    job,
    store,
    workflow,
)
from django_durable.enqueueing import new_job
from django_durable.execution import timed_out
from django_durable.models import Attempt, DeadLetter, Job
from django_durable.operations import current_keep
from django_durable.signals import job_cancelled
from tests.by_hand import bear
from tests.contract.running import Runner, run

HOUR = timedelta(hours=1)

pytestmark = pytest.mark.django_db


@pytest.fixture
def work() -> Any:
    @job(name="cancelled.work")
    def work(how: str = "") -> str:
        if how:
            raise error_of(how)
        return "done"

    return work


def error_of(how: str) -> BaseException:
    errors: dict[str, BaseException] = {
        "error": ValueError("broke"),
        "permanent": PermanentFailure("hopeless"),
        "retry": RetryJob("again", delay=timedelta(0)),
        "cancel": CancelJob("its own reason"),
        "exit": SystemExit(1),
    }
    return errors[how]


def fresh(made: Job) -> Job:
    return Job.objects.get(pk=made.pk)


def parked(kind: Any) -> Job:
    made: Job = kind.enqueue()
    claim = Runner(kind).take()
    store.park(connection, (claim.id, claim.epoch), wake_at=claim.claimed_at + HOUR)
    return fresh(made)


# What the call returns


@pytest.mark.parametrize("delay", [timedelta(0), HOUR])
def test_job_that_is_ready_is_cancelled_and_never_runs_again(work: Any, delay: timedelta) -> None:
    made = work.using(run_after=delay).enqueue()

    assert made.cancel(reason="not wanted") == "cancelled"
    assert (made.status, made.cancel_reason) == (Job.Status.CANCELLED, "not wanted")
    assert made.finished_at is not None
    assert made.run_now() is False
    assert Runner(work).claim() == []


def test_job_that_is_parked_is_cancelled_and_never_runs_again(work: Any) -> None:
    made = parked(work)
    assert made.status == Job.Status.WAITING

    assert made.cancel() == "cancelled"
    assert fresh(made).status == Job.Status.CANCELLED


def test_job_that_waits_for_a_retry_is_cancelled(work: Any) -> None:
    made = run(work.enqueue("error"))

    assert made.cancel() == "cancelled"
    made.refresh_from_db()
    assert made.attempts.get().outcome == "failed"
    assert made.dead_letter is None


def test_job_that_runs_is_requested_to_end(work: Any) -> None:
    made = work.enqueue()
    Runner(work).take()

    assert made.cancel(reason="enough") == "requested"
    assert (made.status, made.cancel_reason) == (Job.Status.RUNNING, "enough")


@pytest.mark.parametrize("how", ["", "permanent", "cancel"])
def test_job_that_has_ended_is_finished(work: Any, how: str) -> None:
    ended = run(work.enqueue(how))
    reason, status = ended.cancel_reason, ended.status

    assert ended.cancel(reason="too late") == "finished"
    assert (ended.status, ended.cancel_reason) == (status, reason)


def test_reason_is_empty_unless_given_and_the_first_one_stays(work: Any) -> None:
    made = work.enqueue()
    Runner(work).take()
    made.cancel(reason="first")
    assert made.cancel(reason="second") == "requested"
    assert made.cancel_reason == "first"

    other = work.enqueue()
    other.cancel()
    assert other.cancel_reason == ""


# How a running job learns of it


def cancel_elsewhere(made: Job) -> None:
    Job.objects.get(pk=made.pk).cancel(reason="asked")


def test_running_job_learns_of_it_at_check_cancelled() -> None:
    seen: list[Any] = []

    @workflow
    def flow(context: JobContext) -> None:
        context.check_cancelled()
        seen.append("went on")
        cancel_elsewhere(context.job)
        try:
            context.check_cancelled()
        except Exception:  # noqa: BLE001 - that it sees nothing is the point
            seen.append("seen as an Exception")
        except CancelRequested:
            seen.append("requested")
            raise
        finally:
            seen.append("finally")

    ended = run(flow.enqueue())

    assert seen == ["went on", "requested", "finally"]
    assert (ended.status, ended.cancel_reason) == (Job.Status.CANCELLED, "asked")
    assert ended.attempts.get().outcome == "cancelled"


def test_running_job_learns_of_it_at_its_progress_and_from_then_on_everywhere() -> None:
    seen: list[str] = []

    @workflow
    def flow(context: JobContext) -> None:
        context.progress(1)
        cancel_elsewhere(context.job)
        for verb in (lambda: context.progress(2), context.check_cancelled):
            try:
                verb()
            except CancelRequested:
                seen.append("requested")
        context.progress(3)

    ended = run(flow.enqueue())

    assert seen == ["requested", "requested"]
    assert ended.status == Job.Status.CANCELLED
    assert ended.progress["done"] == 2


def test_async_job_learns_of_it_too() -> None:
    @workflow
    async def flow(context: JobContext) -> str:
        await context.acheck_cancelled()
        await context.job.acancel(reason="asked")
        await context.aprogress(1)
        return "went on"

    ended = run(flow.enqueue())

    assert (ended.status, ended.cancel_reason) == (Job.Status.CANCELLED, "asked")


# What it ends in


def end_after_request(kind: Any, made: Job) -> Job:
    """Run the job, which is asked to cancel while it runs."""
    runner = Runner(kind)
    claim = runner.take()
    assert made.cancel(reason="asked") == "requested"
    assert runner.record(runner.execute(claim))
    return fresh(made)


def test_job_that_returns_after_the_request_is_successful(work: Any) -> None:
    ended = end_after_request(work, work.enqueue())

    assert (ended.status, ended.result()) == (Job.Status.SUCCESSFUL, "done")
    assert not ended.attempts.exists()


@pytest.mark.parametrize("how", ["error", "permanent", "retry", "cancel", "exit"])
def test_job_that_raises_after_the_request_is_cancelled_with_its_error_kept(
    work: Any, how: str
) -> None:
    ended = end_after_request(work, work.enqueue(how))

    assert (ended.status, ended.cancel_reason) == (Job.Status.CANCELLED, "asked")
    attempt = ended.attempts.get()
    assert (attempt.number, attempt.outcome) == (1, "cancelled")
    assert attempt.error_class == type(error_of(how)).__name__
    assert attempt.traceback
    assert not DeadLetter.objects.exists()
    assert Runner(work).claim() == []


def test_result_that_cannot_be_stored_after_the_request_is_cancelled() -> None:
    @job
    def give() -> object:
        return object()

    ended = end_after_request(give, give.enqueue())

    assert ended.status == Job.Status.CANCELLED
    assert "object" in ended.attempts.get().message
    assert not DeadLetter.objects.exists()


def test_job_that_times_out_after_the_request_is_cancelled(work: Any) -> None:
    made = work.enqueue()
    runner = Runner(work)
    claim = runner.take()
    made.cancel(reason="asked")

    runner.record(timed_out(JobContext(claim, work, timedelta(seconds=1))))

    ended = fresh(made)
    assert (ended.status, ended.cancel_reason) == (Job.Status.CANCELLED, "asked")
    attempt = ended.attempts.get()
    assert (attempt.outcome, attempt.error_class) == ("timed_out", "JobTimeout")
    assert not DeadLetter.objects.exists()


def test_job_that_is_lost_after_the_request_is_cancelled(
    work: Any, advance: Callable[[timedelta], None]
) -> None:
    made = work.enqueue()
    Runner(work).take()
    made.cancel(reason="asked")
    advance(HOUR)

    store.rescue(connection, current_keep())

    ended = fresh(made)
    assert (ended.status, ended.cancel_reason) == (Job.Status.CANCELLED, "asked")
    assert (ended.attempts.get().outcome, ended.dead_letter) == ("lost", None)


def test_job_that_is_rejected_after_the_request_is_cancelled() -> None:
    @job
    def reject() -> None:
        raise RejectJob

    ended = end_after_request(reject, reject.enqueue())

    assert (ended.status, ended.cancel_reason) == (Job.Status.CANCELLED, "asked")
    assert Runner(reject).claim() == []


def test_job_that_is_given_back_after_the_request_is_cancelled(work: Any) -> None:
    made = work.enqueue()
    runner = Runner(work)
    claim = runner.take()
    made.cancel(reason="asked")

    runner.give_back(claim)

    assert fresh(made).status == Job.Status.CANCELLED


def test_cancelled_jobs_are_kept_as_completed_ones_are() -> None:
    @job(keep_completed=HOUR)
    def work() -> None:
        raise CancelJob

    cancelled, own = work.enqueue(), work.enqueue()
    cancelled.cancel()
    (ended,) = Runner(work).run()

    assert ended == own
    for made in (fresh(cancelled), ended):
        assert made.kept_until - made.finished_at == HOUR


# Trees


@pytest.fixture
def tree(work: Any) -> dict[str, Job]:
    """A root that runs, with children in four states, one of which has a child."""
    root = work.enqueue()
    parent = Runner(work).take()
    ids = {"done": bear(parent, work)}
    Runner(work).run()
    ids |= {"parent": bear(parent, work)}
    child = Runner(work).take()
    ids |= {"grandchild": bear(child, work), "ready": bear(parent, work)}
    store.park(connection, (child.id, child.epoch), wake_at=child.claimed_at + HOUR)
    return {"root": root, **{name: Job.objects.get(pk=pk) for name, pk in ids.items()}}


def statuses(tree: dict[str, Job]) -> dict[str, str]:
    return {name: fresh(member).status for name, member in tree.items()}


def test_cancel_of_a_root_cancels_all_unfinished_descendants(tree: dict[str, Job]) -> None:
    assert tree["root"].cancel(reason="all of it") == "requested"

    assert statuses(tree) == {
        "root": "RUNNING",
        "done": "SUCCESSFUL",
        "parent": "CANCELLED",
        "grandchild": "CANCELLED",
        "ready": "CANCELLED",
    }
    assert fresh(tree["grandchild"]).cancel_reason == "all of it"


def test_cancel_of_a_branch_leaves_the_rest_alone(tree: dict[str, Job]) -> None:
    assert tree["parent"].cancel() == "cancelled"

    assert statuses(tree) == {
        "root": "RUNNING",
        "done": "SUCCESSFUL",
        "parent": "CANCELLED",
        "grandchild": "CANCELLED",
        "ready": "READY",
    }
    assert fresh(tree["root"]).cancel_requested_at is None


def test_cancel_without_tree_leaves_the_descendants_alone(tree: dict[str, Job]) -> None:
    assert tree["parent"].cancel(tree=False) == "cancelled"

    assert statuses(tree)["grandchild"] == "READY"


def test_no_child_is_born_into_a_cancelled_tree(work: Any) -> None:
    root = work.enqueue()
    claim = Runner(work).take()
    root.cancel()

    child = store.bear(
        connection,
        new_job(work.using(), (), {}),
        parent=claim.id,
        root=claim.root_id,
        epoch=claim.epoch,
    )

    assert child is None
    assert not root.children.exists()


# Many at once


def test_queryset_cancels_all_of_its_jobs(work: Any) -> None:
    waiting = work.using(queue_name="doomed").enqueue_many([((), {})] * 3)
    running = work.using(priority=9).enqueue()
    Runner(work).claim(1)
    other = work.using(queue_name="spared").enqueue()

    doomed = Job.objects.exclude(queue_name="spared")
    assert doomed.cancel(reason="swept") == 4

    assert [fresh(made).status for made in waiting] == ["CANCELLED"] * 3
    assert fresh(running).status == "RUNNING"
    assert fresh(running).cancel_reason == "swept"
    assert fresh(other).status == "READY"
    assert Job.objects.filter(status="CANCELLED").cancel() == 0


@pytest.mark.usefixtures("committed")
def test_signal_tells_of_a_cancelled_job_and_its_reason(work: Any) -> None:
    told: list[Any] = []

    def receive(sender: Any, job: Job, reason: str, **_: Any) -> None:
        told.append((sender, job.pk, job.status, reason))

    made = work.enqueue()
    job_cancelled.connect(receive)
    try:
        made.cancel(reason="not wanted")
        made.cancel(reason="again")
    finally:
        job_cancelled.disconnect(receive)

    assert told == [(Job, made.pk, "CANCELLED", "not wanted")]
    assert not Attempt.objects.exists()
