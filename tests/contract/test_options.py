"""Contract, section 2: what each option of a job type does to its jobs."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db.models import F
from django.test import override_settings

from django_durable import Backoff, JobContext, PermanentFailure, Priority, job
from django_durable.models import Attempt, DeadLetter, Job
from django_durable.querysets import ClockNow
from tests.contract.running import Runner, run, run_to_the_end

pytestmark = pytest.mark.django_db

SECOND = timedelta(seconds=1)
HOUR = timedelta(hours=1)


class FlakyError(Exception):
    """Pass by itself."""


class HopelessError(FlakyError):
    """Never pass, though its base does."""


def wait_before_next(stored: Job) -> timedelta:
    """Return how long a job that failed waits, by the database's clock."""
    (wait,) = Job.objects.filter(pk=stored.pk).values_list(
        F("run_after") - F("attempts__finished_at"), flat=True
    )
    return wait


# queue_name, priority


def test_queue_name_puts_the_job_into_that_queue() -> None:
    @job(queue_name="mail")
    def send() -> None: ...

    stored = send.enqueue()
    moved = send.using(queue_name="slow").enqueue()

    assert [stored.queue_name, moved.queue_name] == ["mail", "slow"]
    assert [ran.pk for ran in Runner(send, queues=frozenset({"mail"})).run()] == [stored.pk]
    assert Runner(send, excluded_queues=frozenset({"slow"})).run() == []


def test_higher_priority_goes_first_then_the_due_time_then_the_id() -> None:
    @job(priority=Priority.LOW)
    def work(label: str) -> str:
        return label

    last = work.enqueue("low")
    hour_ago = datetime(2020, 1, 1, tzinfo=UTC)
    third = work.using(priority=0).enqueue("normal, enqueued now")
    fourth = work.using(priority=0).enqueue("normal, enqueued later")
    second = work.using(priority=0, run_after=hour_ago).enqueue("normal, long due")
    first = work.using(priority=100).enqueue("highest")
    never = work.using(priority=100, run_after=HOUR).enqueue("not due")

    ran = Runner(work).run()

    assert [each.pk for each in ran] == [each.pk for each in (first, second, third, fourth, last)]
    never.refresh_from_db()
    assert never.status == Job.Status.READY


# max_attempts


@pytest.mark.parametrize("most", [1, 2, 3])
def test_max_attempts_is_the_number_of_runs(most: int) -> None:
    runs = []

    @job(max_attempts=most)
    def fail() -> None:
        runs.append(1)
        raise FlakyError

    dead = run_to_the_end(fail.enqueue())

    assert (len(runs), dead.attempt, dead.status) == (most, most, Job.Status.DEAD)
    assert [each.number for each in dead.attempts.all()] == list(range(1, most + 1))


def test_three_attempts_are_the_default() -> None:
    @job
    def fail() -> None:
        raise FlakyError

    assert run_to_the_end(fail.enqueue()).attempt == 3


def test_none_tries_without_limit() -> None:
    @job(max_attempts=None)
    def fail() -> None:
        raise FlakyError

    stored = fail.enqueue()
    for number in range(1, 8):
        stored = run(stored)
        assert (stored.status, stored.attempt) == (Job.Status.READY, number)
        stored.run_now()


# backoff


def test_backoff_is_the_wait_after_each_attempt() -> None:
    @job(
        max_attempts=5, backoff=Backoff(initial=2 * SECOND, factor=3, maximum=20 * SECOND, jitter=0)
    )
    def fail() -> None:
        raise FlakyError

    stored = fail.enqueue()
    waits = []
    for _ in range(4):
        stored = run(stored)
        (wait,) = Job.objects.filter(pk=stored.pk).values_list(
            F("run_after") - ClockNow(), flat=True
        )
        waits.append(round(wait.total_seconds()))
        stored.run_now()

    assert waits == [2, 6, 18, 20]


def test_jitter_spreads_the_waits_to_both_sides() -> None:
    @job(backoff=Backoff(initial=100 * SECOND, jitter=0.1))
    def fail() -> None:
        raise FlakyError

    fail.enqueue_many([((), {})] * 40)
    waits = [wait_before_next(each).total_seconds() for each in Runner(fail).run()]

    assert all(90 <= wait <= 110 for wait in waits)
    assert min(waits) < 98
    assert max(waits) > 102


def test_due_time_of_a_retry_goes_by_the_clock_of_the_database(
    advance: Callable[[timedelta], None],
) -> None:
    @job(backoff=Backoff(initial=HOUR, jitter=0))
    def fail() -> None:
        raise FlakyError

    advance(timedelta(days=365))
    failed = run(fail.enqueue())

    assert failed.run_after > datetime.now(UTC) + timedelta(days=364)
    assert Runner(fail).claim() == []
    advance(HOUR)
    assert len(Runner(fail).claim()) == 1


def test_backoff_of_using_is_that_of_the_job() -> None:
    @job(backoff=Backoff(initial=HOUR))
    def fail() -> None:
        raise FlakyError

    failed = run(fail.using(backoff=Backoff(initial=5 * SECOND, jitter=0)).enqueue())

    assert wait_before_next(failed) == 5 * SECOND


# retry_on, give_up_on


def test_exception_in_retry_on_is_tried_again_and_one_in_neither_is_permanent() -> None:
    @job(retry_on=(FlakyError, OSError))
    def fail(kind: str) -> None:
        raise {"flaky": FlakyError, "os": FileNotFoundError, "other": KeyError}[kind]("x")

    for kind in ("flaky", "os"):
        assert run(fail.enqueue(kind)).status == Job.Status.READY
    dead = run(fail.enqueue("other"))
    assert (dead.status, dead.dead_letter.reason) == (Job.Status.DEAD, "permanent")


def test_exception_in_give_up_on_is_permanent_though_its_base_is_tried_again() -> None:
    @job(retry_on=FlakyError, give_up_on=[HopelessError])
    def fail(hopeless: bool) -> None:
        raise HopelessError if hopeless else FlakyError

    assert run(fail.enqueue(False)).status == Job.Status.READY
    assert run(fail.enqueue(True)).status == Job.Status.DEAD


def test_every_exception_is_tried_again_by_default_and_what_ends_the_process_is_not() -> None:
    @job
    def fail(hard: bool) -> None:
        raise SystemExit(3) if hard else FlakyError

    assert run(fail.enqueue(False)).status == Job.Status.READY
    dead = run(fail.enqueue(True))
    assert (dead.status, dead.dead_letter.error_class) == (Job.Status.DEAD, "SystemExit")


# timeout: what a worker does at it is in tests/processes


@pytest.mark.parametrize(
    ("given", "own", "expected"),
    [
        ({}, {}, timedelta(minutes=5)),
        ({"timeout": 2 * SECOND}, {}, 2 * SECOND),
        ({"timeout": None}, {}, None),
        ({"timeout": 2 * SECOND}, {"timeout": HOUR}, HOUR),
        ({"timeout": 2 * SECOND}, {"timeout": None}, None),
    ],
)
def test_timeout_bounds_the_stretch(
    given: dict[str, Any], own: dict[str, Any], expected: timedelta | None
) -> None:
    @job(takes_context=True, **given)
    def tell(context: JobContext) -> list[datetime | None]:
        return [context.job.claimed_at, context.deadline]

    claimed, deadline = run(tell.using(**own).enqueue()).result()

    assert (deadline - claimed if deadline else None) == expected


# takes_context


def test_context_is_the_first_parameter() -> None:
    @job(takes_context=True)
    def tell(context: JobContext, left: int, right: int = 2) -> list[Any]:
        return [str(context.job.pk), context.attempt, context.delivery_key, left, right]

    stored = tell.enqueue(1)

    assert stored.args == [1]
    assert run(stored).result() == [str(stored.pk), 1, str(stored.pk), 1, 2]


def test_without_it_the_function_gets_its_arguments_alone() -> None:
    @job
    def tell(*args: Any, **kwargs: Any) -> list[Any]:
        return [list(args), kwargs]

    assert run(tell.enqueue(1, 2, three=3)).result() == [[1, 2], {"three": 3}]


# requires


def test_a_job_waits_for_a_worker_with_the_capability_it_requires() -> None:
    @job(requires="gpu")
    def train() -> str:
        return "trained"

    stored = train.enqueue()

    assert Runner(train).run() == []
    assert Runner(train, capabilities=frozenset({"tpu"})).run() == []
    (done,) = Runner(train, capabilities=frozenset({"gpu", "tpu"})).run()
    assert (done, done.result()) == (stored, "trained")


def test_a_worker_with_capabilities_takes_plain_jobs_too() -> None:
    @job(requires="gpu")
    def work() -> None: ...

    plain = work.using(requires=None).enqueue()

    assert Runner(work, capabilities=frozenset({"gpu"})).run() == [plain]


# accept


def test_accept_is_asked_with_the_job_before_the_attempt_starts() -> None:
    asked = []

    def accept(stored: Job) -> bool:
        asked.append((stored.pk, stored.args, stored.attempt, stored.metadata))
        return True

    @job(accept=accept)
    def work(value: int) -> int:
        return value

    stored = work.using(metadata={"tenant": "7"}).enqueue(1)

    assert run(stored).result() == 1
    assert asked == [(stored.pk, [1], 1, {"tenant": "7"})]


@pytest.mark.parametrize("welcome", [True, False])
def test_accept_of_an_async_job_may_ask_the_database(welcome: bool) -> None:
    @job(accept=lambda stored: Job.objects.filter(pk=stored.pk).exists() is welcome)
    async def work() -> str:
        return "done"

    ran = run(work.enqueue())

    assert (ran.return_value, ran.attempt, ran.rejections) == (
        ("done", 1, 0) if welcome else (None, 0, 1)
    )


def test_a_job_that_is_not_accepted_is_rejected() -> None:
    @job(accept=lambda stored: False)
    def work() -> None:
        raise AssertionError("it must not run")

    rejected = run(work.enqueue())

    assert (rejected.status, rejected.attempt, rejected.rejections) == (Job.Status.READY, 0, 1)
    assert not rejected.attempts.exists()


def test_an_error_in_accept_is_a_failed_attempt() -> None:
    def accept(stored: Job) -> bool:
        raise FlakyError("cannot tell")

    @job(accept=accept)
    def work() -> None: ...

    failed = run(work.enqueue())

    assert (failed.status, failed.attempt, failed.rejections) == (Job.Status.READY, 1, 0)
    assert failed.attempts.get().message == "cannot tell"


# concurrency_key, concurrency_limit


def test_one_job_of_a_key_runs_at_once_and_the_others_wait_their_turn() -> None:
    @job(concurrency_key="printer")
    def print_page(number: int) -> None: ...

    jobs = [print_page.enqueue(number) for number in range(3)]
    one, other = Runner(print_page), Runner(print_page)
    order = []
    for _ in jobs:
        (claim,) = one.claim()
        assert other.claim() == []
        order.append(claim.id)
        one.record(one.execute(claim))

    assert order == [each.pk for each in jobs]


def test_key_may_be_made_of_the_arguments() -> None:
    @job(concurrency_key=lambda tenant, size=1: f"tenant-{tenant}")
    def work(tenant: int, size: int = 1) -> None: ...

    stored = [work.enqueue(1), work.enqueue(1, size=2), work.enqueue(tenant=2)]

    assert [each.concurrency_key for each in stored] == ["tenant-1", "tenant-1", "tenant-2"]
    assert {claim.id for claim in Runner(work).claim()} == {stored[0].pk, stored[2].pk}


def test_no_key_is_no_limit() -> None:
    @job(concurrency_key=lambda tenant: None)
    def work(tenant: int) -> None: ...

    work.enqueue_many([((tenant,), {}) for tenant in range(5)])

    assert len(Runner(work).claim()) == 5


def test_limit_lets_so_many_jobs_of_a_key_run() -> None:
    @job(concurrency_key="api", concurrency_limit=3)
    def call() -> None: ...

    call.enqueue_many([((), {})] * 5)
    one, other = Runner(call), Runner(call)

    claimed = one.claim(2) + other.claim() + one.claim()
    assert len(claimed) == 3
    one.record(one.execute(claimed[0]))
    assert len(other.claim()) == 1


def test_one_key_may_serve_several_job_types() -> None:
    @job(concurrency_key="account")
    def debit() -> None: ...

    @job(concurrency_key="account")
    def credit() -> None: ...

    debit.enqueue()
    credit.enqueue()

    assert [claim.name for claim in Runner(debit, credit).claim()] == [debit.name]
    assert Runner(credit).claim() == []


def test_a_job_that_waits_for_its_key_holds_up_nobody_else() -> None:
    @job(concurrency_key="printer")
    def print_page() -> None: ...

    @job(priority=Priority.LOW)
    def other() -> None: ...

    print_page.enqueue_many([((), {})] * 3)
    last = other.enqueue()

    assert last.pk in {claim.id for claim in Runner(print_page, other).claim(2)}


def test_retries_rejections_and_given_back_jobs_free_their_key() -> None:
    @job(concurrency_key="printer")
    def fail() -> None:
        raise FlakyError

    runner = Runner(fail)
    first, second = fail.enqueue(), fail.enqueue()
    claim = runner.take()
    assert claim.id == first.pk
    runner.record(runner.execute(claim))

    claim = runner.take()
    assert claim.id == second.pk
    runner.give_back(claim)
    assert len(runner.claim()) == 1


# keep_completed, keep_dead


def kept_for(stored: Job) -> timedelta | None:
    return stored.kept_until - stored.finished_at if stored.kept_until else None


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, timedelta(days=7)),
        ({"keep_completed": HOUR}, HOUR),
        ({"keep_completed": None}, None),
    ],
)
def test_completed_jobs_are_kept_as_long_as_the_type_or_the_setting_says(
    given: dict[str, Any], expected: timedelta | None
) -> None:
    @job(**given)
    def work() -> None: ...

    assert kept_for(run(work.enqueue())) == expected


@pytest.mark.parametrize(
    ("given", "expected"),
    [({}, timedelta(days=30)), ({"keep_dead": HOUR}, HOUR), ({"keep_dead": None}, None)],
)
def test_dead_jobs_are_kept_as_long_as_the_type_or_the_setting_says(
    given: dict[str, Any], expected: timedelta | None
) -> None:
    @job(max_attempts=1, **given)
    def fail() -> None:
        raise FlakyError

    assert kept_for(run(fail.enqueue())) == expected


@override_settings(DURABLE_KEEP_COMPLETED=HOUR, DURABLE_KEEP_DEAD=2 * HOUR)
def test_settings_say_how_long_where_the_type_does_not() -> None:
    @job(max_attempts=1)
    def work(fail: bool) -> None:
        if fail:
            raise FlakyError

    assert kept_for(run(work.enqueue(False))) == HOUR
    assert kept_for(run(work.enqueue(True))) == 2 * HOUR


def test_completed_job_that_is_not_kept_is_deleted_at_once() -> None:
    @job(keep_completed=timedelta(0))
    def work() -> None: ...

    stored = work.using(idempotency_key="once").enqueue()
    runner = Runner(work)
    assert runner.record(runner.execute(runner.take()))

    assert not Job.all_objects.filter(pk=stored.pk).exists()
    with pytest.raises(Job.DoesNotExist):
        stored.result()
    assert work.using(idempotency_key="once").enqueue().created


def test_failure_is_recorded_even_where_nothing_completed_is_kept() -> None:
    @job(keep_completed=timedelta(0), max_attempts=1)
    def fail() -> None:
        raise FlakyError("the reason")

    dead = run(fail.enqueue())

    assert Job.objects.dead().get() == dead
    assert DeadLetter.objects.get(job=dead).message == "the reason"


# on_dead_letter: that a worker calls it is in tests/processes


def test_hook_is_due_from_the_commit_of_the_record_for_every_cause_of_death() -> None:
    @job(on_dead_letter=print, max_attempts=1)
    def fail(how: str) -> Any:
        if how == "permanent":
            raise PermanentFailure
        if how == "unstorable":
            return object()
        raise FlakyError

    for how in ("exhausted", "permanent", "unstorable"):
        dead = run(fail.enqueue(how))
        assert dead.dead_letter.reason == how
        assert dead.dead_letter.hook_due_at == dead.dead_letter.died_at


def test_attempt_rows_are_only_for_what_did_not_succeed() -> None:
    @job(takes_context=True)
    def second_time(context: JobContext) -> int:
        if context.attempt == 1:
            raise FlakyError
        return context.attempt

    done = run_to_the_end(second_time.enqueue())

    assert (done.status, done.attempt, done.result()) == (Job.Status.SUCCESSFUL, 2, 2)
    assert list(Attempt.objects.filter(job=done).values_list("number", flat=True)) == [1]


def test_option_values_may_differ_from_job_to_job() -> None:
    @job
    def work() -> None: ...

    for options in ({}, {"priority": 5}, {"queue_name": "b"}, {"requires": "gpu"}):
        work.using(**options).enqueue()

    assert len(Runner(work, capabilities=frozenset({"gpu"})).run()) == 4
