"""Contract, section 4: what a job shows, and what can be done with it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from asgiref.sync import sync_to_async
from django.db import connection, connections, transaction
from django.db.models import ProtectedError

from django_durable import (
    CancelJob,
    DurableError,
    JobCancelled,
    JobContext,
    JobFailed,
    PermanentFailure,
    job,
    store,
    workflow,
)
from django_durable.fields import Undecodable
from django_durable.jobtypes import JobType
from django_durable.models import Attempt, DeadLetter, Job, Queue, Worker
from django_durable.operations import current_keep
from django_durable.payloads import decode
from tests.by_hand import bear, beat, silence
from tests.contract.committed import Racer, elsewhere
from tests.contract.running import Runner, run, run_to_the_end

SECOND = timedelta(seconds=1)
HOUR = timedelta(hours=1)


class FlakyError(Exception):
    """Pass by itself."""


@pytest.fixture
def work() -> Any:
    @job(name="jobs.work", max_attempts=1)
    def work(how: str = "", *args: Any) -> Any:
        if how == "die":
            raise PermanentFailure("it is hopeless")
        if how == "cancel":
            raise CancelJob("not wanted")
        return [how, *args]

    return work


@pytest.fixture
def flaky() -> Any:
    @job(name="jobs.flaky")
    def flaky() -> None:
        raise FlakyError("not today")

    return flaky


def fresh(made: Job) -> Job:
    return Job.all_objects.get(pk=made.pk)


@pytest.fixture
def child(work: Any) -> Callable[[store.Claim], Job]:
    """Give the means to make a child of a running job."""
    return lambda parent: Job.objects.get(pk=bear(parent, work))


# Status and fields


def test_statuses_have_the_names_of_the_contract() -> None:
    assert Job.Status.values == [
        "READY",
        "RUNNING",
        "WAITING",
        "SUCCESSFUL",
        "DEAD",
        "CANCELLED",
    ]


@pytest.mark.django_db
def test_job_goes_from_ready_over_running_to_its_end(work: Any) -> None:
    made = work.enqueue()
    assert (made.status, made.is_finished) == (Job.Status.READY, False)
    runner = Runner(work)
    claim = runner.take()
    running = fresh(made)
    assert (running.status, running.is_finished) == (Job.Status.RUNNING, False)
    runner.record(runner.execute(claim))
    done = fresh(made)
    assert (done.status, done.is_finished) == (Job.Status.SUCCESSFUL, True)
    for how in ("die", "cancel"):
        assert run(work.enqueue(how)).is_finished


@pytest.mark.django_db
def test_fields_of_a_new_job_tell_what_was_asked_for(work: Any) -> None:
    made = fresh(
        work.using(
            queue_name="slow",
            priority=4,
            metadata={"a": "b"},
            idempotency_key="k",
            concurrency_key="c",
            max_attempts=9,
            run_after=HOUR,
        ).enqueue("x", {"y": (1, 2)})
    )

    assert isinstance(made.id, UUID)
    assert made.id.version == 7
    assert (made.name, made.queue_name, made.priority) == ("jobs.work", "slow", 4)
    assert (made.args, made.kwargs) == (["x", {"y": (1, 2)}], {})
    assert made.metadata == {"a": "b"}
    assert (made.attempt, made.max_attempts, made.rejections) == (0, 9, 0)
    assert made.run_after - made.enqueued_at == HOUR
    assert made.started_at is made.finished_at is made.kept_until is None
    assert (made.parent, made.root, made.depth) == (None, made, 0)
    assert (made.idempotency_key, made.concurrency_key) == ("k", "c")
    assert (made.cancel_reason, made.progress, made.dead_letter) == ("", {}, None)


@pytest.mark.django_db
def test_ids_are_in_the_order_of_their_making(work: Any) -> None:
    ids = [work.enqueue().pk for _ in range(20)]

    assert ids == sorted(ids)


@pytest.mark.django_db
def test_fields_of_an_ended_job_tell_how_it_went(
    flaky: Any, advance: Callable[[timedelta], None]
) -> None:
    dead = run_to_the_end(flaky.enqueue())

    assert (dead.attempt, dead.max_attempts) == (3, 3)
    assert dead.enqueued_at <= dead.started_at < dead.finished_at
    assert dead.kept_until - dead.finished_at == timedelta(days=30)
    assert dead.dead_letter.job == dead


@pytest.mark.django_db
def test_started_at_is_the_start_of_the_first_attempt(
    flaky: Any, advance: Callable[[timedelta], None]
) -> None:
    first = run(flaky.enqueue())
    advance(HOUR)
    second = run(first)

    assert second.attempt == 2
    assert second.started_at == first.started_at


@pytest.mark.django_db
def test_progress_shows_how_far_the_job_is() -> None:
    seen = []

    @workflow
    def flow(context: JobContext) -> None:
        context.progress(1)
        seen.append(fresh(context.job).progress)
        context.progress(2, total=3, message="nearly")
        seen.append(fresh(context.job).progress)

    run(flow.enqueue())

    assert seen == [
        {"done": 1, "total": None, "message": ""},
        {"done": 2, "total": 3, "message": "nearly"},
    ]


@pytest.mark.django_db
def test_attempts_tell_of_each_that_did_not_succeed(flaky: Any) -> None:
    made = flaky.enqueue()
    runner = Runner(flaky, worker="first")
    runner.record(runner.execute(runner.take()))
    made.run_now()
    dead = run_to_the_end(made)
    one, two, three = dead.attempts.order_by("number")

    assert [each.number for each in (one, two, three)] == [1, 2, 3]
    assert [one.worker, two.worker] == ["first", "runner"]
    assert one.started_at <= one.finished_at
    assert (one.outcome, one.message) == ("failed", "not today")
    assert one.error_class == f"{__name__}.FlakyError"
    assert 'raise FlakyError("not today")' in one.traceback
    assert Attempt.Outcome.values == ["failed", "timed_out", "lost", "cancelled"]


@pytest.mark.django_db
def test_plain_success_costs_no_row_but_the_jobs(work: Any) -> None:
    run(work.enqueue())

    assert Job.objects.count() == 1
    assert not Attempt.objects.exists()
    assert not DeadLetter.objects.exists()


@pytest.mark.django_db
def test_children_of_a_job_are_at_hand(work: Any, child: Any) -> None:
    parent = work.enqueue()
    claim = Runner(work).take()
    children = [child(claim) for _ in range(2)]
    grandchild = child(Runner(work).claim()[0])

    assert list(parent.children.order_by("pk")) == children
    assert [each.parent for each in children] == [parent, parent]
    assert (grandchild.parent, grandchild.root, grandchild.depth) == (children[0], parent, 2)


# blocked_on


@pytest.mark.django_db
def test_blocked_on_says_why_a_job_does_not_run(flaky: Any, work: Any) -> None:
    scheduled = work.using(run_after=HOUR).enqueue()
    assert scheduled.blocked_on.startswith("scheduled until ")
    retrying = run(flaky.enqueue())
    assert retrying.blocked_on.startswith("retrying at ")
    assert retrying.blocked_on.endswith("after attempt 1 failed")
    assert work.enqueue().blocked_on == "no live worker serves it: none is running"
    beat("something.else")
    assert "nobody knows the job type 'jobs.work'" in work.enqueue().blocked_on
    beat("jobs.work")
    assert work.enqueue().blocked_on == "waiting for a free slot"
    assert "capability 'gpu'" in work.using(requires="gpu").enqueue().blocked_on
    Queue.objects.create(name="still", paused=True)
    assert work.using(queue_name="still").enqueue().blocked_on == "queue 'still' is paused"


@pytest.mark.django_db
def test_blocked_on_names_the_key_that_is_held(work: Any) -> None:
    beat("jobs.work")
    first = work.using(concurrency_key="c").enqueue()
    second = work.using(concurrency_key="c").enqueue()
    Runner(work).take()

    assert fresh(first).blocked_on == ""
    assert second.blocked_on == f"held by concurrency key 'c' (job {first.pk} runs)"


@pytest.mark.django_db
def test_blocked_on_is_empty_for_a_job_that_runs_or_has_ended(work: Any) -> None:
    made = work.enqueue()
    runner = Runner(work)
    claim = runner.take()
    assert fresh(made).blocked_on == ""
    runner.record(runner.execute(claim))
    assert fresh(made).blocked_on == ""


# Worker


@pytest.mark.django_db
def test_worker_row_has_the_fields_of_the_contract(work: Any) -> None:
    beat("jobs.work", queues=["mail"], capabilities=["gpu"], slots=7)
    (worker,) = Worker.objects.all()

    assert (worker.name, worker.hostname, worker.pid) == ("beating", "host.example", 4711)
    assert isinstance(worker.incarnation, UUID)
    assert worker.started_at <= worker.heartbeat_at
    assert (worker.queues, worker.job_names) == (["mail"], ["jobs.work"])
    assert (worker.capabilities, worker.slots, worker.draining) == (["gpu"], 7, False)


@pytest.mark.django_db
def test_worker_that_ended_badly_is_shown_for_a_day(work: Any) -> None:
    one = beat("jobs.work")
    other = beat("jobs.work")
    silence(one, timedelta(hours=23))
    silence(other, timedelta(hours=25))

    store.forget_dead(connection, timedelta(days=1))
    assert list(Worker.objects.all()) == [one]


# result


@pytest.mark.django_db
@pytest.mark.parametrize("value", [None, 0, False, "", [], {"a": 1}, (1, 2)])
def test_result_is_the_value(value: Any) -> None:
    @job
    def give() -> Any:
        return value

    done = run(give.enqueue())

    assert done.result() == value
    assert type(done.result()) is type(value)
    assert Job.objects.get(pk=done.pk).result() == value


@pytest.mark.django_db
def test_result_of_a_dead_job_raises_with_its_error(flaky: Any) -> None:
    dead = run_to_the_end(flaky.enqueue())

    with pytest.raises(JobFailed, match="not today") as caught:
        dead.result()
    error = caught.value
    assert error.error_class == f"{__name__}.FlakyError"
    assert error.message == "not today"
    assert 'raise FlakyError("not today")' in error.traceback
    assert (error.job, error.dead_letter) == (dead, dead.dead_letter)


@pytest.mark.django_db
def test_result_of_a_cancelled_job_raises_with_its_reason(work: Any) -> None:
    cancelled = run(work.enqueue("cancel"))

    with pytest.raises(JobCancelled, match="not wanted") as caught:
        cancelled.result()
    assert (caught.value.reason, caught.value.job) == ("not wanted", cancelled)


@pytest.mark.django_db
@pytest.mark.parametrize("timeout", [0, 0.05, timedelta(milliseconds=50)])
def test_result_that_does_not_come_in_time_is_a_timeout(work: Any, timeout: Any) -> None:
    made = work.enqueue()
    started = time.monotonic()

    with pytest.raises(TimeoutError, match="READY"):
        made.result(timeout=timeout)
    assert time.monotonic() - started < 5


@pytest.mark.django_db
@pytest.mark.parametrize("timeout", [-1, float("nan"), timedelta(seconds=-1)])
def test_timeout_out_of_range_is_a_value_error(work: Any, timeout: Any) -> None:
    with pytest.raises(ValueError, match="timeout"):
        work.enqueue().result(timeout=timeout)


@pytest.mark.django_db
def test_result_that_retention_has_removed_does_not_exist(
    work: Any, advance: Callable[[timedelta], None]
) -> None:
    done = run(work.enqueue())
    advance(timedelta(days=8))
    with pytest.raises(Job.DoesNotExist):
        done.result()
    deleted = run(work.enqueue())
    deleted.delete()
    with pytest.raises(Job.DoesNotExist):
        deleted.result(timeout=5)


@pytest.mark.django_db
def test_result_that_this_process_cannot_read_raises(work: Any) -> None:
    done = run(work.enqueue())
    written_elsewhere = Undecodable('{"$":["enum","no_such_module:Size","SMALL"]}', "")
    Job.objects.filter(pk=done.pk).update(return_value=written_elsewhere)

    with pytest.raises(DurableError, match="no_such_module"):
        fresh(done).result()


@pytest.mark.usefixtures("committed")
def test_result_wakes_when_the_job_ends(work: Any) -> None:
    made = work.enqueue("value")
    waiting = Racer(lambda: Job.objects.get(pk=made.pk).result(timeout=30))
    run(made)

    assert waiting.answer() == ["value"]


@pytest.mark.usefixtures("committed")
def test_result_raises_when_the_job_dies_meanwhile(work: Any) -> None:
    made = work.enqueue("die")
    waiting = Racer(lambda: Job.objects.get(pk=made.pk).result(timeout=30))
    run(made)

    with pytest.raises(JobFailed, match="it is hopeless"):
        waiting.answer()


@pytest.mark.usefixtures("committed")
def test_result_holds_no_transaction_while_it_waits(work: Any) -> None:
    made = work.enqueue()
    with pytest.raises(TimeoutError):
        made.result(timeout=0.01)
    assert not connection.in_atomic_block


@pytest.mark.usefixtures("committed")
def test_async_code_waits_with_aresult(work: Any) -> None:
    made, never = work.enqueue("value"), work.using(run_after=HOUR).enqueue()

    async def main() -> Any:
        try:
            done = threading.Thread(target=lambda: elsewhere(lambda: run(made)))
            waiting = asyncio.create_task(made.aresult(timeout=30))
            done.start()
            value = await waiting
            done.join()
            with pytest.raises(TimeoutError):
                await never.aresult(timeout=0.05)
            assert await never.acancel(reason="late") == "cancelled"
            return value
        finally:
            await sync_to_async(connections.close_all)()

    assert asyncio.run(main()) == ["value"]
    assert fresh(never).cancel_reason == "late"


@pytest.mark.usefixtures("committed")
def test_value_and_completion_are_one_commit(work: Any) -> None:
    made = work.enqueue("value")
    runner = Runner(work)
    outcome = runner.execute(runner.take())
    assert isinstance(outcome, store.Success)

    def look() -> tuple[str, Any]:
        return Job.objects.values_list("status", "return_value").get(pk=made.pk)

    with transaction.atomic():
        runner.record(outcome)
        assert elsewhere(look) == ("RUNNING", None)
    assert elsewhere(look) == ("SUCCESSFUL", ["value"])
    assert decode(outcome.result) == ["value"]


# run_now


@pytest.mark.django_db
def test_run_now_ends_a_delay(work: Any) -> None:
    made = work.using(run_after=HOUR).enqueue()
    assert Runner(work).claim() == []

    assert made.run_now() is True
    assert made.run_after < made.enqueued_at + HOUR
    assert run(made).status == Job.Status.SUCCESSFUL


@pytest.mark.django_db
def test_run_now_ends_a_backoff(flaky: Any) -> None:
    retrying = run(flaky.enqueue())
    assert Runner(flaky).claim() == []

    retrying.run_now()
    assert run(retrying).attempt == 2


@pytest.mark.django_db
def test_run_now_changes_no_other_job(work: Any) -> None:
    due = work.enqueue()
    before = fresh(due).run_after
    assert due.run_now() is False
    assert fresh(due).run_after == before
    done = run(due)
    assert done.run_now() is False
    assert fresh(done).run_after == before


# tree and delete


@pytest.fixture
def tree(work: Any, child: Any) -> list[Job]:
    """A root with two children and a grandchild; the root runs."""
    root = work.enqueue()
    claim = Runner(work).take()
    children = [child(claim) for _ in range(2)]
    grandchild = child(Runner(work).claim()[0])
    return [root, *children, grandchild]


@pytest.mark.django_db
def test_tree_is_the_whole_tree_from_wherever_it_is_asked(tree: list[Job], work: Any) -> None:
    work.enqueue()
    for member in tree:
        assert set(fresh(member).tree()) == set(tree)


@pytest.mark.django_db
def test_tree_of_a_lone_job_is_itself(work: Any) -> None:
    work.enqueue()
    made = work.enqueue()

    assert list(made.tree()) == [made]


@pytest.mark.django_db
def test_delete_takes_a_root_whose_tree_has_ended_with_all_of_it(
    tree: list[Job], work: Any, flaky: Any
) -> None:
    other = run_to_the_end(flaky.enqueue())
    tree[0].cancel()
    end_running(work)

    tree[0].delete()

    assert list(Job.all_objects.all()) == [other]
    assert list(DeadLetter.objects.all()) == [other.dead_letter]
    other.delete()
    assert not Job.all_objects.exists()
    assert not DeadLetter.objects.exists()
    assert not Attempt.objects.exists()


def end_running(kind: JobType) -> None:
    """End what runs without an outcome, as a worker does that stops."""
    for member in Job.objects.running():
        rights = [(member.pk, member.epoch)]
        store.release(connection, rights, keep=current_keep())


@pytest.mark.django_db
def test_delete_refuses_a_job_that_lives(work: Any) -> None:
    made = work.enqueue()

    with pytest.raises(ProtectedError, match="cancel it first"):
        made.delete()
    Runner(work).take()
    with pytest.raises(ProtectedError):
        Job.objects.filter(pk=made.pk).delete()
    assert fresh(made).status == Job.Status.RUNNING


@pytest.mark.django_db
def test_delete_refuses_a_root_with_a_living_descendant_and_a_child(
    tree: list[Job], work: Any
) -> None:
    runner = Runner(work)
    root = tree[0]
    claim_of = {each.pk: (each.pk, each.epoch) for each in Job.objects.running()}
    store.record_successes(connection, [store.Success(claim_of[root.pk], "null", None)])
    with pytest.raises(ProtectedError):
        fresh(root).delete()

    end_running(work)
    runner.run()
    assert all(fresh(member).is_finished for member in tree)
    with pytest.raises(ProtectedError):
        tree[1].delete()
    assert Job.objects.count() == len(tree)
    fresh(root).delete()
    assert not Job.all_objects.exists()


# Querysets


@pytest.mark.django_db
def test_querysets_have_names(work: Any) -> None:
    done, dead, cancelled = (run(work.enqueue(how)) for how in ("", "die", "cancel"))
    parked = work.enqueue()
    claim = Runner(work).take()
    store.park(connection, (claim.id, claim.epoch), wake_at=claim.claimed_at + HOUR)
    running = work.enqueue()
    Runner(work).take()
    ready = work.enqueue()
    delayed = work.using(run_after=HOUR, queue_name="slow", idempotency_key="k").enqueue()

    assert set(Job.objects.ready()) == {ready, delayed}
    assert list(Job.objects.running()) == [running]
    assert list(Job.objects.waiting()) == [parked]
    assert list(Job.objects.dead()) == [dead]
    assert set(Job.objects.finished()) == {done, dead, cancelled}
    assert list(Job.objects.in_queue("slow")) == [delayed]
    assert list(Job.objects.by_key(work, "k")) == [delayed]
    assert list(Job.objects.by_key("jobs.work", "k")) == [delayed]
    assert list(Job.objects.by_key(work, "other")) == []
    assert list(Job.objects.ready().in_queue("slow").filter(name="jobs.work")) == [delayed]


@pytest.mark.django_db
def test_querysets_leave_out_what_retention_has_given_up(
    work: Any, advance: Callable[[timedelta], None]
) -> None:
    done = run(work.enqueue())
    advance(timedelta(days=8))
    kept = work.enqueue()

    assert list(Job.objects.all()) == [kept]
    assert set(Job.all_objects.all()) == {done, kept}
    assert not Job.objects.finished().exists()


@pytest.mark.django_db
def test_moments_are_of_the_clock_of_the_database(
    work: Any, advance: Callable[[timedelta], None]
) -> None:
    advance(timedelta(days=365))
    done = run(work.enqueue())

    floor = datetime.now(UTC) + timedelta(days=364)
    for name in ("enqueued_at", "run_after", "started_at", "finished_at"):
        assert getattr(done, name) > floor
