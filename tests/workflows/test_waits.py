"""Sleeps and signals by hand: what is stored before the wait, and what ends it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from django.db import connection

from django_durable import JobContext, RetryJob, SignalTimeout, store, workflow
from django_durable.models import Job
from tests.contract.running import Runner
from tests.workflows.driving import (
    AT_ONCE,
    HOUR,
    FlakyError,
    checkpoints,
    fresh,
    go,
    go_one,
    value_of,
)

pytestmark = pytest.mark.django_db
MINUTE = timedelta(minutes=1)


# Sleeps.


def sleeper(until: Any, **options: Any) -> Any:
    @workflow(backoff=AT_ONCE, **options)
    def flow(context: JobContext) -> str:
        context.sleep("nap", until)
        return "awake"

    return flow


def test_a_sleep_longer_than_a_moment_parks_and_goes_on_in_time(advance: Any) -> None:
    flow = sleeper(HOUR)
    job = flow.enqueue()
    (parked,) = go(flow)
    assert parked.status == "WAITING"
    assert (parked.lease_until, parked.claimer) == (None, None)
    advance(HOUR - MINUTE)
    assert go(flow) == []
    advance(MINUTE)
    go(flow)
    assert value_of(job) == "awake"
    assert fresh(job).attempt == 1
    assert checkpoints(job) == [("sleep", "nap", "succeeded")]


@pytest.mark.parametrize(
    "until",
    [
        timedelta(0),
        -HOUR,
        datetime(2001, 1, 1, tzinfo=UTC),
        timedelta(milliseconds=20),
    ],
    ids=str,
)
def test_a_sleep_that_is_over_or_short_does_not_park(until: Any) -> None:
    flow = sleeper(until)
    job = flow.enqueue()
    assert len(go(flow)) == 1
    assert value_of(job) == "awake"
    assert checkpoints(job) == [("sleep", "nap", "succeeded")]


def test_a_sleep_until_an_aware_moment_ends_then(advance: Any) -> None:
    moment = store.now(connection) + HOUR
    flow = sleeper(moment)
    job = flow.enqueue()
    (parked,) = go(flow)
    assert parked.due_at == moment
    advance(HOUR)
    go(flow)
    assert value_of(job) == "awake"


@pytest.mark.parametrize(
    "until",
    [
        *(datetime(2030, 1, 1), 5, None, "1h"),  # noqa: DTZ001
        # Moments that come back from the database as no datetime.
        *(timedelta.max, timedelta(days=3_000_000)),
        datetime.max.replace(tzinfo=timezone(-HOUR)),
    ],
)
def test_a_sleep_until_no_moment_is_a_value_error(until: Any) -> None:
    @workflow
    def flow(context: JobContext) -> None:
        with pytest.raises(ValueError):
            context.sleep("nap", until)

    job = flow.enqueue()
    go(flow)
    assert value_of(job) is None


def test_only_the_rest_is_slept_after_a_crash(advance: Any) -> None:
    @workflow(backoff=AT_ONCE)
    def flow(context: JobContext) -> str:
        if context.attempt > 1:
            advance(HOUR / 2)
        context.sleep("nap", HOUR)
        return "awake"

    job = flow.enqueue()
    (parked,) = go(flow)
    due = parked.due_at
    # As if the worker had died at the wake-up: the job is due, and its sleep is not marked.
    advance(HOUR / 2)
    Job.all_objects.filter(pk=job.pk).update(due_at=store.now(connection))
    claim = Runner(flow).take()
    Runner(flow).give_back(claim)
    (again,) = go(flow)
    assert (again.status, again.due_at) == ("WAITING", due)
    advance(HOUR / 2)
    go(flow)
    assert value_of(job) == "awake"


def test_a_retry_does_not_sleep_again(advance: Any) -> None:
    @workflow(backoff=AT_ONCE)
    def flow(context: JobContext) -> str:
        context.sleep("nap", HOUR)
        if context.attempt == 1:
            raise FlakyError
        return "awake"

    job = flow.enqueue()
    go(flow)
    advance(HOUR)
    go(flow)
    assert value_of(job) == "awake"


@pytest.mark.parametrize("swallowed", [Exception, BaseException])
@pytest.mark.parametrize("verb", ["sleep", "wait_for_signal", "gather"])
def test_a_handler_around_a_wait_does_not_keep_it_from_parking(
    advance: Any, swallowed: type[BaseException], verb: str
) -> None:
    reached: list[str] = []

    @workflow
    def other(context: JobContext) -> None: ...

    awaited = other.enqueue()

    @workflow
    def flow(context: JobContext) -> str:
        waits = {
            "sleep": lambda: context.sleep("wait", HOUR),
            "wait_for_signal": lambda: context.wait_for_signal("wait"),
            "gather": lambda: context.gather([Job.objects.get(pk=awaited.pk)]),
        }
        try:
            waits[verb]()
        except swallowed:
            reached.append("handler")
        context.step("next", reached.append, "next")
        return "on"

    job = flow.enqueue()
    (parked,) = go_one(flow)
    assert parked.status == "WAITING"
    assert "next" not in reached
    advance(HOUR)
    job.signal("wait")
    go(other)
    go(flow)
    assert value_of(job) == "on"
    assert reached[-1] == "next"
    assert reached.count("next") == 1


def test_a_run_that_swallows_its_park_and_returns_has_parked_all_the_same(advance: Any) -> None:
    @workflow
    def flow(context: JobContext) -> str:
        try:
            context.sleep("nap", HOUR)
        except BaseException:  # noqa: BLE001 - this is the case
            return "too early"
        return "awake"

    job = flow.enqueue()
    (parked,) = go(flow)
    assert parked.status == "WAITING"
    advance(HOUR)
    go(flow)
    assert value_of(job) == "awake"


def test_finally_blocks_run_at_every_park(advance: Any) -> None:
    seen: list[str] = []

    @workflow
    def flow(context: JobContext) -> None:
        try:
            context.sleep("nap", HOUR)
        finally:
            seen.append("finally")

    flow.enqueue()
    go(flow)
    assert seen == ["finally"]
    advance(HOUR)
    go(flow)
    assert seen == ["finally", "finally"]


def test_three_parks_cost_no_attempt(advance: Any) -> None:
    @workflow(max_attempts=1)
    def flow(context: JobContext) -> int:
        for number in range(3):
            context.sleep(f"nap-{number}", HOUR)
        return context.attempt

    job = flow.enqueue()
    for _ in range(3):
        (parked,) = go(flow)
        assert parked.status == "WAITING"
        advance(HOUR)
    go(flow)
    assert value_of(job) == 1
    assert fresh(job).attempt == 1


def test_one_slot_runs_many_sleeping_workflows_and_stays_free(advance: Any) -> None:
    @workflow
    def quick(context: JobContext) -> str:
        return "quick"

    flow = sleeper(HOUR)
    jobs = flow.enqueue_many([((), {})] * 200)
    for _ in range(200):
        (parked,) = Runner(flow).run(slots=1)
        assert parked.status == "WAITING"
    job = quick.enqueue()
    (ran,) = Runner(flow, quick).run(slots=1)
    assert (ran.pk, ran.status) == (job.pk, "SUCCESSFUL")
    advance(HOUR)
    while Runner(flow).run(slots=10):
        pass
    assert {value_of(job) for job in jobs} == {"awake"}


# Signals.


def waiter(timeout: Any = None, **how: Any) -> Any:
    @workflow(backoff=AT_ONCE)
    def flow(context: JobContext) -> Any:
        return context.wait_for_signal("word", timeout=timeout, **how)

    return flow


def test_a_signal_wakes_the_job_that_waits_for_it() -> None:
    flow = waiter()
    job = flow.enqueue()
    (parked,) = go(flow)
    assert (parked.status, parked.due_at) == ("WAITING", None)
    assert job.signal("word", {"a": (1, 2)}) is True
    assert fresh(job).status == "READY"
    go(flow)
    assert value_of(job) == {"a": (1, 2)}
    assert fresh(job).attempt == 1


def test_a_signal_sent_before_the_job_started_is_there() -> None:
    flow = waiter()
    job = flow.enqueue()
    assert job.signal("word") is True
    assert len(go(flow)) == 1
    assert value_of(job) is None
    assert checkpoints(job) == [("signal", "word", "succeeded")]


def test_the_last_write_wins_until_the_wait_returns_and_then_the_value_stays() -> None:
    values: list[int] = []

    @workflow(backoff=AT_ONCE)
    def flow(context: JobContext) -> int:
        values.append(context.wait_for_signal("a"))
        if context.attempt == 1:
            context.job.signal("a", 3)
            raise FlakyError
        return context.wait_for_signal("second", signal="a")

    job = flow.enqueue()
    job.signal("a", 1)
    job.signal("a", 2)
    go(flow)
    assert values == [2, 2]
    # A second wait under another name gets the latest at once.
    assert value_of(job) == 3


def test_a_second_wait_for_the_same_signal_does_not_find_it_used_up() -> None:
    @workflow
    def flow(context: JobContext) -> list[Any]:
        return [context.wait_for_signal("a"), context.wait_for_signal("b", signal="a")]

    job = flow.enqueue()
    job.signal("a", 1)
    go(flow)
    assert value_of(job) == [1, 1]


def test_another_signal_does_not_wake_the_job() -> None:
    flow = waiter()
    job = flow.enqueue()
    go(flow)
    assert job.signal("other", 1) is True
    assert fresh(job).status == "WAITING"
    assert go(flow) == []


def test_a_signal_does_not_end_a_sleep(advance: Any) -> None:
    flow = sleeper(HOUR)
    job = flow.enqueue()
    (parked,) = go(flow)
    assert job.signal("nap") is True
    assert fresh(job).due_at == parked.due_at
    assert go(flow) == []


@pytest.mark.parametrize("attempts", [0, 1])
def test_a_delayed_or_backing_off_job_keeps_its_time(attempts: int) -> None:
    @workflow
    def flow(context: JobContext) -> Any:
        if context.attempt == 1:
            raise RetryJob("later", delay=HOUR)
        return context.wait_for_signal("word")

    job = flow.using(run_after=HOUR if not attempts else timedelta(0)).enqueue()
    go(flow)
    due = fresh(job).due_at
    assert job.signal("word", 1) is True
    assert (fresh(job).status, fresh(job).due_at) == ("READY", due)
    assert go(flow) == []


def test_a_woken_job_is_back_in_its_old_place() -> None:
    flow = waiter()
    first = flow.enqueue()
    go(flow)
    second = flow.enqueue()
    second.signal("word")
    first.signal("word")
    assert [ran.pk for ran in go_one(flow)] == [first.pk, second.pk]


def test_the_deadline_counts_from_the_first_arrival_and_is_stored(advance: Any) -> None:
    flow = waiter(timeout=HOUR)
    job = flow.enqueue()
    (parked,) = go(flow)
    deadline = parked.due_at
    for _ in range(2):
        # A worker that dies with it, twice.
        advance(HOUR / 3)
        Job.all_objects.filter(pk=job.pk).update(due_at=store.now(connection))
        (again,) = go(flow)
        assert (again.status, again.due_at) == ("WAITING", deadline)
    advance(HOUR / 3)
    (ended,) = go(flow)
    assert ended.status == "DEAD"
    assert ended.dead_letter.error_class == "SignalTimeout"
    assert ended.dead_letter.reason == "permanent"
    assert "'word'" in ended.dead_letter.message


def test_a_present_signal_wins_however_late(advance: Any) -> None:
    flow = waiter(timeout=HOUR)
    job = flow.enqueue()
    go(flow)
    advance(2 * HOUR)
    job.signal("word", "late")
    go(flow)
    assert value_of(job) == "late"


def test_a_recorded_timeout_is_raised_again_on_every_replay(advance: Any) -> None:
    seen: list[str] = []

    @workflow(backoff=AT_ONCE)
    def flow(context: JobContext) -> str:
        try:
            value: str = context.wait_for_signal("word", timeout=HOUR)
        except SignalTimeout as error:
            seen.append(str(error))
            if context.attempt < 3:
                # It comes when the branch is taken already.
                context.job.signal("word", "too late")
                raise RetryJob("again") from error
            return "timeout"
        return value

    job = flow.enqueue()
    go(flow)
    advance(HOUR)
    go(flow)
    assert value_of(job) == "timeout"
    assert seen == [seen[0]] * 3
    assert checkpoints(job) == [("signal", "word", "failed")]


@pytest.mark.parametrize("timeout", [0, timedelta(0)])
def test_a_timeout_of_zero_looks_once(timeout: Any) -> None:
    flow = waiter(timeout=timeout)
    empty, sent = flow.enqueue(), flow.enqueue()
    sent.signal("word", 1)
    go(flow)
    assert fresh(empty).status == "DEAD"
    assert value_of(sent) == 1


@pytest.mark.parametrize("timeout", [-1, -0.5, timedelta(seconds=-1), timedelta.max, 3e11])
def test_a_timeout_that_is_negative_or_without_end_is_a_value_error(timeout: Any) -> None:
    @workflow
    def flow(context: JobContext) -> None:
        with pytest.raises(ValueError):
            context.wait_for_signal("word", timeout=timeout)

    job = flow.enqueue()
    job.signal("word")
    go(flow)
    assert value_of(job) is None
    assert checkpoints(job) == []


def test_a_signal_is_sent_by_key_and_not_to_an_unknown_one() -> None:
    flow = waiter()
    job = flow.using(idempotency_key="order-1").enqueue()
    with pytest.raises(Job.DoesNotExist):
        flow.signal("order-2", "word", 1)
    assert not job.signals.exists()
    assert flow.signal("order-1", "word", 1) is True
    go(flow)
    assert value_of(job) == 1
    assert flow.signal("order-1", "word", 2) is False


@pytest.mark.parametrize("status", ["SUCCESSFUL", "CANCELLED", "DEAD"])
def test_a_signal_to_a_job_that_has_ended_is_not_delivered(status: str) -> None:
    flow = waiter(timeout=0)
    job = flow.enqueue()
    if status == "SUCCESSFUL":
        job.signal("word", 0)
    if status == "CANCELLED":
        job.cancel()
    go(flow)
    assert fresh(job).status == status
    assert job.signal("word", 1) is False
    assert [found.payload for found in job.signals.all()] == [0] * (status == "SUCCESSFUL")


def test_a_signal_to_a_job_that_is_gone_does_not_exist() -> None:
    flow = waiter(timeout=0)
    job = flow.enqueue()
    go(flow)
    pk = job.pk
    job.delete()
    job.pk = pk
    with pytest.raises(Job.DoesNotExist):
        job.signal("word")


def test_a_wait_after_a_timed_wait_is_not_ended_by_the_old_deadline(advance: Any) -> None:
    @workflow
    def flow(context: JobContext) -> Any:
        context.wait_for_signal("first", timeout=HOUR)
        return context.wait_for_signal("second")

    job = flow.enqueue()
    go(flow)
    job.signal("first")
    (parked,) = go(flow)
    assert (parked.status, parked.due_at) == ("WAITING", None)
    advance(2 * HOUR)
    assert go(flow) == []
    job.signal("second", "on")
    go(flow)
    assert value_of(job) == "on"


# `now` and `patched`.


def test_now_is_the_one_clock_and_recorded(advance: Any) -> None:
    seen: list[datetime] = []

    @workflow(backoff=AT_ONCE)
    def flow(context: JobContext) -> None:
        seen.append(context.now("start"))
        if context.attempt == 1:
            advance(HOUR)
            raise FlakyError

    advance(-HOUR)
    before = store.now(connection)
    job = flow.enqueue()
    go(flow)
    advance(HOUR)
    go(flow)
    assert value_of(job) is None
    assert seen[0] == seen[1]
    assert before <= seen[0] <= before + MINUTE
