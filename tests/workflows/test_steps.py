"""Steps: what is recorded is never done again, and what is not recorded is the attempt's affair."""

from __future__ import annotations

import enum
import time
import uuid
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, cast

import pytest
from django.contrib.auth.models import Group
from django.db import DataError, connection, transaction
from django.test.utils import CaptureQueriesContext

from django_durable import (
    Backoff,
    DuplicateStep,
    DurableError,
    JobCancelled,
    JobContext,
    JobFailed,
    PermanentFailure,
    RetryJob,
    step,
    store,
    workflow,
)
from django_durable.choices import StepKind, StepStatus
from django_durable.errortext import class_path
from django_durable.models import Job, Step
from django_durable.outcomes import Abandoned
from django_durable.revival import revive
from django_durable.worker.recorder import Recorder, Ticket
from tests.contract.running import Runner
from tests.workflows.driving import (
    AT_ONCE,
    HOUR,
    FlakyError,
    checkpoints,
    context_of,
    fresh,
    go,
    go_one,
    steal,
    value_of,
)

pytestmark = pytest.mark.django_db


class RefusedError(Exception):
    """Be an error of the users' own that no retry mends."""

    retryable = False


class PickyError(Exception):
    """Be an error that can't be made from a text, and that judges itself."""

    def __init__(self, code: int, *, server: str) -> None:
        super().__init__(code, server)
        self.code = code

    @property
    def retryable(self) -> bool:
        return self.code >= 500

    def __str__(self) -> str:
        return f"code {self.code}"


class PickyGroup(ExceptionGroup[Exception]):
    """Be a group that can't be made from a text and its members."""

    def __new__(cls, errors: list[Exception]) -> PickyGroup:
        return super().__new__(cls, "no use", errors)


class Colour(enum.Enum):
    """Be some values of an importable class."""

    RED = "red"


def test_a_recorded_success_is_returned_without_calling() -> None:
    calls: list[int] = []

    def charge(amount: int, *, currency: str) -> str:
        calls.append(amount)
        return f"{amount} {currency}"

    @workflow(backoff=AT_ONCE)
    def flow(context: JobContext) -> str:
        value: str = context.step("charge", charge, 5, currency="EUR")
        if context.attempt < 3:
            raise FlakyError
        return value

    job = flow.enqueue()
    go(flow)
    assert value_of(job) == "5 EUR"
    assert calls == [5]
    assert fresh(job).attempt == 3
    assert checkpoints(job) == [("step", "charge", "succeeded")]


@pytest.mark.parametrize(
    "value",
    [
        None,
        (1, (2, "x")),
        Decimal("1.10"),
        {"a": [uuid.UUID(int=7), {b"b"}]},
        datetime(2024, 2, 29, 12, tzinfo=UTC),
        timedelta(microseconds=1),
        frozenset({1, 2}),
        Colour.RED,
        -0.0,
        1e16,
        True,
        "",
    ],
    ids=repr,
)
def test_value_and_type_are_the_same_the_first_time_as_on_replay(value: Any) -> None:
    seen: list[str] = []

    @workflow(backoff=AT_ONCE)
    def flow(context: JobContext) -> None:
        seen.append(repr(context.step("value", lambda: value)))
        if context.attempt == 1:
            raise FlakyError

    job = flow.enqueue()
    go(flow)
    assert value_of(job) is None
    assert seen == [repr(value), repr(value)]


def test_what_the_codec_makes_plain_is_plain_the_first_time_too() -> None:
    class Special(dict[str, int]):
        pass

    types: list[type] = []

    @workflow(backoff=AT_ONCE)
    def flow(context: JobContext) -> None:
        types.append(type(context.step("value", lambda: Special(a=1))))
        if context.attempt == 1:
            raise FlakyError

    flow.enqueue()
    go(flow)
    assert types == [dict, dict]


def test_a_value_that_is_changed_afterwards_stays_as_it_was_recorded() -> None:
    made: list[int] = [1]

    @workflow(backoff=AT_ONCE)
    def flow(context: JobContext) -> list[int]:
        value: list[int] = context.step("value", lambda: made)
        value.append(2)
        made.append(3)
        if context.attempt == 1:
            raise FlakyError
        return value

    job = flow.enqueue()
    go(flow)
    assert value_of(job) == [1, 2]


def test_none_is_a_value_and_is_not_earned_twice() -> None:
    calls: list[int] = []

    @workflow(backoff=AT_ONCE)
    def flow(context: JobContext) -> None:
        context.step("nothing", lambda: calls.append(1))
        if context.attempt == 1:
            raise FlakyError

    job = flow.enqueue()
    go(flow)
    assert calls == [1]
    assert checkpoints(job) == [("step", "nothing", "succeeded")]


@pytest.mark.parametrize(
    ("error", "options"),
    [
        (PermanentFailure("no use"), {}),
        (RefusedError("no use"), {}),
        (KeyError("no use"), {"retry_on": ConnectionError}),
        (ValueError("no use"), {"give_up_on": ValueError}),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_a_permanent_error_is_recorded_and_raised_again_as_what_it_was(
    error: Exception, options: dict[str, Any]
) -> None:
    calls: list[int] = []
    seen: list[tuple[type, str]] = []

    def fail() -> None:
        calls.append(1)
        raise error

    @workflow(backoff=AT_ONCE, **({"retry_on": Exception} | options))
    def flow(context: JobContext) -> str:
        try:
            context.step("fail", fail)
        except Exception as caught:  # noqa: BLE001 - that is what is looked at
            seen.append((type(caught), str(caught)))
        if context.attempt == 1:
            raise RetryJob("again")
        return "went on"

    job = flow.enqueue()
    go(flow)
    assert value_of(job) == "went on"
    assert calls == [1]
    assert [said for _kind, said in seen] == [str(error)] * 2
    for kind, _said in seen:
        assert issubclass(kind, type(error))
        assert class_path(kind) == class_path(type(error))


def test_a_recorded_error_that_nobody_catches_is_the_death_of_the_job_at_once() -> None:
    def fail() -> None:
        raise RefusedError("card stolen")

    @workflow(backoff=AT_ONCE, max_attempts=5)
    def flow(context: JobContext) -> None:
        context.step("fail", fail)

    job = flow.enqueue()
    go(flow)
    letter = fresh(job).dead_letter
    assert letter is not None
    assert (letter.reason, letter.attempt_count) == ("permanent", 1)
    assert letter.error_class == "tests.workflows.test_steps.RefusedError"
    assert letter.message == "card stolen"
    assert "card stolen" in letter.traceback
    found = job.steps.get()
    assert (found.status, found.error_class) == ("failed", letter.error_class)


def test_an_error_that_needs_more_than_a_text_comes_back_as_its_class_and_permanent() -> None:
    seen: list[str] = []

    def fail() -> None:
        raise PickyError(404, server="a")

    @workflow(backoff=AT_ONCE)
    def flow(context: JobContext) -> str:
        try:
            context.step("fail", fail)
        except PickyError as caught:
            seen.append(f"{type(caught).__qualname__} {caught.retryable}")
        if context.attempt == 1:
            raise FlakyError
        return "done"

    job = flow.enqueue()
    go(flow)
    assert value_of(job) == "done"
    assert seen == ["PickyError False", "PickyError False"]


@pytest.mark.parametrize("kind", [ExceptionGroup, PickyGroup])
def test_a_permanent_group_comes_back_as_its_class_with_a_member_that_tells(kind: Any) -> None:
    seen: list[Any] = []
    errors = [ValueError("bad"), KeyError("worse")]

    def fail() -> None:
        raise kind(errors) if kind is PickyGroup else kind("no use", errors)

    @workflow(backoff=AT_ONCE, give_up_on=ValueError)
    def flow(context: JobContext) -> str:
        try:
            context.step("fail", fail)
        except ExceptionGroup as caught:
            (member,) = caught.exceptions
            seen.append((type(caught), caught.message, repr(member), context.is_retryable(caught)))
        if context.attempt == 1:
            raise RetryJob("again")
        return "went on"

    job = flow.enqueue()
    go(flow)
    assert value_of(job) == "went on"
    assert (
        seen == [(kind, "no use", repr(PermanentFailure("no use (2 sub-exceptions)")), False)] * 2
    )


class TalkativeError(Exception):
    """Say what only its constructor can have set."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code

    def __str__(self) -> str:
        return f"code {self.code}"


class HeirlessError(TalkativeError):
    """Be a class that none may be made of any more."""

    def __init_subclass__(cls) -> None:
        raise TypeError("no heirs")


@pytest.mark.parametrize(
    "error",
    [
        TalkativeError(404),
        KeyError("k"),
        UnicodeDecodeError("utf8", b"x", 0, 1, "bad"),
        OSError(2, "no file"),
        JobCancelled("too late"),
        JobFailed("no money", error_class="shop.CardError"),
        RefusedError("card stolen"),
        PickyError(404, server="a"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_comes_back_with_its_message(error: Exception) -> None:
    seen: list[Exception] = []

    def fail() -> None:
        raise error

    @workflow(backoff=AT_ONCE, max_attempts=2, give_up_on=type(error))
    def flow(context: JobContext) -> None:
        try:
            context.step("fail", fail)
        except type(error) as caught:
            seen.append(caught)
            if context.attempt == 1:
                raise RetryJob("again") from None
            raise

    job = flow.enqueue()
    go(flow)
    assert [str(caught) for caught in seen] == [str(error)] * 2
    names = {(type(caught).__module__, type(caught).__qualname__) for caught in seen}
    assert names == {(type(error).__module__, type(error).__qualname__)}
    letter = fresh(job).dead_letter
    assert letter is not None
    assert (letter.message, letter.reason) == (str(error), "permanent")
    assert letter.error_class == fresh(job).steps.get().error_class


def test_the_class_of_an_error_matters_more_than_its_message() -> None:
    caught = revive(f"{__name__}.HeirlessError", "code 404")
    assert isinstance(caught, HeirlessError)
    assert caught.args == ("code 404",)


def test_an_error_whose_class_is_gone_comes_back_as_a_permanent_failure() -> None:
    calls: list[int] = []

    def fail() -> None:
        calls.append(1)
        raise RefusedError("long ago")

    @workflow(backoff=AT_ONCE)
    def flow(context: JobContext) -> None:
        try:
            context.step("fail", fail)
        except RefusedError:
            raise FlakyError from None

    job = flow.enqueue()
    go_one(flow)
    Step.objects.filter(job=job).update(error_class="nowhere.to.be.FoundError")
    go(flow)
    letter = fresh(job).dead_letter
    assert letter is not None
    assert letter.error_class == "PermanentFailure"
    assert letter.message == "nowhere.to.be.FoundError: long ago"
    assert calls == [1]


def test_any_other_error_records_nothing_and_is_the_attempts() -> None:
    calls: list[int] = []

    def fail() -> str:
        calls.append(1)
        if len(calls) < 3:
            raise FlakyError("not yet")
        return "at last"

    @workflow(backoff=AT_ONCE)
    def flow(context: JobContext) -> str:
        value: str = context.step("fail", fail)
        return value

    job = flow.enqueue()
    go_one(flow)
    assert checkpoints(job) == []
    go(flow)
    assert value_of(job) == "at last"
    assert [attempt.message for attempt in job.attempts.order_by("number")] == ["not yet"] * 2


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_an_interruption_is_never_recorded_as_the_steps_error(error: type[BaseException]) -> None:
    @workflow(backoff=AT_ONCE, retry_on=ConnectionError)
    def flow(context: JobContext) -> None:
        def stop() -> None:
            raise error

        context.step("stop", stop)

    job = flow.enqueue()
    go(flow)
    assert checkpoints(job) == []


def test_a_value_that_cannot_be_stored_is_a_permanent_error_of_the_step() -> None:
    @workflow(backoff=AT_ONCE)
    def flow(context: JobContext) -> None:
        context.step("bad", object)

    job = flow.enqueue()
    go(flow)
    letter = fresh(job).dead_letter
    assert letter is not None
    assert (letter.error_class, letter.attempt_count) == ("PayloadError", 1)
    assert "'bad'" in letter.message


# A policy of its own.


def test_a_step_with_a_policy_is_tried_in_place_when_the_waits_are_short() -> None:
    calls: list[int] = []

    @step(backoff=Backoff(initial=timedelta(milliseconds=5), jitter=0.0), max_attempts=4)
    def flaky() -> str:
        calls.append(1)
        if len(calls) < 3:
            raise FlakyError
        return "at last"

    @workflow
    def flow(context: JobContext) -> str:
        value: str = context.step("flaky", flaky)
        return value

    job = flow.enqueue()
    assert len(go(flow)) == 1
    assert value_of(job) == "at last"
    assert len(calls) == 3
    assert job.steps.get().tries == 2
    assert fresh(job).attempt == 1


def test_a_long_wait_between_two_tries_is_parked_and_the_count_goes_on(advance: Any) -> None:
    calls: list[int] = []

    @step(backoff=Backoff(initial=HOUR, factor=1.0, jitter=0.0), max_attempts=3)
    def flaky() -> None:
        calls.append(1)
        raise FlakyError("down")

    @workflow(backoff=AT_ONCE, max_attempts=1)
    def flow(context: JobContext) -> None:
        context.step("flaky", flaky)

    job = flow.enqueue()
    for tries in (1, 2):
        (ran,) = go_one(flow)
        assert (ran.status, len(calls)) == ("WAITING", tries)
        assert job.steps.get().tries == tries
        assert go_one(flow) == []
        advance(HOUR)
    (ran,) = go_one(flow)
    assert ran.status == "DEAD"
    assert ran.dead_letter.reason == "permanent"
    assert ran.dead_letter.error_class == "tests.workflows.driving.FlakyError"
    assert len(calls) == 3
    assert ran.attempt == 1
    assert checkpoints(job) == [("step", "flaky", "failed")]


def test_after_the_last_try_the_error_is_recorded_and_can_be_caught() -> None:
    calls: list[int] = []

    @step(backoff=AT_ONCE, max_attempts=2)
    def flaky() -> None:
        calls.append(1)
        raise FlakyError("down")

    @workflow(backoff=AT_ONCE)
    def flow(context: JobContext) -> str:
        try:
            context.step("flaky", flaky)
        except FlakyError as error:
            if context.attempt == 1:
                raise RetryJob from error
            return str(error)
        return "no error"

    job = flow.enqueue()
    go(flow)
    assert value_of(job) == "down"
    assert len(calls) == 2


def test_a_permanent_error_ends_a_policys_tries() -> None:
    calls: list[int] = []

    @step(backoff=AT_ONCE, max_attempts=5)
    def refused() -> None:
        calls.append(1)
        raise RefusedError

    @workflow(backoff=AT_ONCE)
    def flow(context: JobContext) -> None:
        context.step("refused", refused)

    flow.enqueue()
    go(flow)
    assert len(calls) == 1


def test_a_crash_between_two_tries_does_not_forget_the_count() -> None:
    calls: list[int] = []

    @step(backoff=Backoff(initial=timedelta(milliseconds=1), jitter=0.0), max_attempts=3)
    def flaky() -> None:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        raise FlakyError

    @workflow(backoff=AT_ONCE, max_attempts=5)
    def flow(context: JobContext) -> None:
        context.step("flaky", flaky)

    job = flow.enqueue()
    Runner(flow).execute(claim := Runner(flow).take())
    assert job.steps.get().tries == 1
    Runner(flow).give_back(claim)
    go(flow)
    assert job.steps.get().tries == 3
    assert len(calls) == 4


def test_a_step_that_overruns_its_own_timeout_is_tried_again_by_its_policy() -> None:
    calls: list[int] = []

    @step(backoff=AT_ONCE, max_attempts=2, timeout=timedelta(microseconds=1))
    def slow() -> None:
        calls.append(1)
        sum(range(10_000))

    @workflow(backoff=AT_ONCE, retry_on=ConnectionError)
    def flow(context: JobContext) -> None:
        context.step("slow", slow)

    job = flow.enqueue()
    go(flow)
    letter = fresh(job).dead_letter
    assert letter is not None
    assert letter.error_class == "JobTimeout"
    assert len(calls) == 2


def test_calling_a_step_function_is_a_plain_call() -> None:
    @step(max_attempts=3)
    def double(value: int) -> int:
        return 2 * value

    assert double(4) == 8


@pytest.mark.parametrize(
    "options", [{"max_attempts": 0}, {"timeout": timedelta(0)}, {"compensate": "name"}]
)
def test_a_policy_out_of_range_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        step(**options)


# The fence.


def test_a_steps_write_is_fenced_and_the_loser_stops() -> None:
    reached: list[str] = []

    @workflow(backoff=AT_ONCE)
    def flow(context: JobContext) -> None:
        try:
            context.step("stolen", steal, context.job.pk)
        except Exception:  # noqa: BLE001 - a careless job must not go on either
            reached.append("handler")
        reached.append("after")

    job = flow.enqueue()
    runner = Runner(flow)
    outcome = runner.execute(runner.take())
    assert isinstance(outcome, Abandoned)
    assert reached == []
    assert checkpoints(job) == []


def test_a_loser_that_swallows_everything_gets_no_further() -> None:
    calls: list[int] = []

    def lose(context: JobContext) -> None:
        calls.append(1)
        steal(context.job.pk)

    @workflow(backoff=AT_ONCE)
    def flow(context: JobContext) -> str:
        for name in ("stolen", "next", "last"):
            with suppress(BaseException):
                context.step(name, lose, context)
        return "value of the loser"

    job = flow.enqueue()
    runner = Runner(flow)
    assert runner.record(runner.execute(runner.take())) is False
    assert calls == [1]
    assert checkpoints(job) == []
    assert fresh(job).status == "RUNNING"


def test_a_recorded_step_is_never_changed_by_a_later_write() -> None:
    @workflow
    def flow(context: JobContext) -> None: ...

    job = flow.enqueue()
    claim = Runner(flow).take()
    first, second = context_of(claim), context_of(claim)
    assert first.step("once", lambda: 1) == 1
    second.journal._recorded = None
    second.journal._known = {}
    second.step("once", lambda: 2)
    assert job.steps.get().value == 1


def checkpoint(right: tuple[uuid.UUID, int], name: str) -> store.Checkpoint:
    return store.Checkpoint(right, StepKind.STEP, name, 1, StepStatus.SUCCEEDED, value="1")


def test_of_two_claims_on_one_job_in_a_shared_commit_only_the_one_that_stands_is_recorded() -> None:
    @workflow
    def flow(context: JobContext) -> None: ...

    job = flow.enqueue()
    claim = Runner(flow).take()
    lost, stands = (claim.id, claim.epoch - 1), (claim.id, claim.epoch)
    written = store.record_for_many(
        connection, [checkpoint(lost, "of the lost"), checkpoint(stands, "of the new")]
    )
    assert [each.stands for each in written] == [False, True]
    assert checkpoints(job) == [("step", "of the new", "succeeded")]


@pytest.mark.parametrize("company", [0, 2], ids=["alone", "with others"])
def test_a_checkpoint_is_recorded_the_same_way_alone_and_with_others(company: int) -> None:
    @workflow
    def flow(context: JobContext) -> None: ...

    job, *others = [flow.enqueue() for _ in range(1 + company)]
    rights = {claim.id: (claim.id, claim.epoch) for claim in Runner(flow).claim()}
    right = rights[job.pk]

    def record(**values: Any) -> store.Written:
        """Record a checkpoint of the job, beside one of each other."""
        made = store.Checkpoint(
            **{"right": right, "kind": StepKind.STEP, "name": "a", "ordinal": 1, **values}
        )
        beside = [checkpoint(rights[other.pk], "b") for other in others]
        return store.record_for_many(connection, [*beside, made])[-1]

    def rows() -> list[tuple[Any, ...]]:
        names = ("kind", "name", "ordinal", "status", "error_class", "message", "tries", "child")
        return list(Step.objects.filter(job=job).order_by("name").values_list(*names))

    pending = record(status=StepStatus.PENDING, tries=2, delay=60.0, error_class="E", message="m")
    assert (pending.stands, pending.cancel_requested) == (True, False)
    assert pending.wake_at is not None
    assert pending.now is not None
    assert timedelta(seconds=59) < pending.wake_at - pending.now <= timedelta(seconds=60)
    assert rows() == [("step", "a", 1, "pending", "E", "m", 2, None)]
    assert job.steps.get().finished_at is None
    record(status=StepStatus.SUCCEEDED, value="1", took=5.0, undo_name="undo", undo_call="[[],{}]")
    # What is final is never changed.
    assert record(status=StepStatus.FAILED, error_class="F").stands
    assert rows() == [("step", "a", 1, "succeeded", "", "", 0, None)]
    moment = pending.now + timedelta(hours=1)
    again = record(name="z", status=StepStatus.SUCCEEDED, value="2", wake_at=moment, child=job.pk)
    assert again.wake_at == moment
    assert rows()[1] == ("step", "z", 1, "succeeded", "", "", 0, job.pk)
    job.cancel()
    assert record(name="y", status=StepStatus.SUCCEEDED).cancel_requested
    right = (right[0], right[1] - 1)
    assert not record(name="x", status=StepStatus.SUCCEEDED).stands
    assert [row[1] for row in rows()] == ["a", "y", "z"]


@pytest.mark.usefixtures("committed")
@pytest.mark.django_db(transaction=True)
def test_a_checkpoint_that_the_database_refuses_fails_its_own_run_only() -> None:
    @workflow
    def flow(context: JobContext) -> None: ...

    jobs = [flow.enqueue() for _ in range(3)]
    rights = {claim.id: (claim.id, claim.epoch) for claim in Runner(flow).claim()}
    # No verb lets this name through; whatever the database refuses would do.
    names = ["good", "long" * 100, "good"]
    tickets = [
        Ticket([checkpoint(rights[job.pk], name)]) for job, name in zip(jobs, names, strict=True)
    ]
    recorder = Recorder(cast(Any, None), cast(Any, None), lambda: None)
    recorder._tickets.extend(tickets)
    recorder._step()
    assert tickets[0].wait().stands
    assert tickets[2].wait().stands
    with pytest.raises(DataError):
        tickets[1].wait()
    assert [job.steps.count() for job in jobs] == [1, 0, 1]


# Names, and where a verb may not be.


def test_a_name_used_twice_in_a_run_is_the_death_of_the_job() -> None:
    @workflow(backoff=AT_ONCE)
    def flow(context: JobContext) -> None:
        for number in range(3):
            context.step("again", lambda number=number: number)

    job = flow.enqueue()
    go(flow)
    letter = fresh(job).dead_letter
    assert letter is not None
    assert (letter.error_class, letter.attempt_count) == ("DuplicateStep", 1)
    assert "'again'" in letter.message


def test_one_name_may_serve_each_kind_of_checkpoint() -> None:
    @workflow
    def child(context: JobContext) -> int:
        return 4

    @workflow
    def flow(context: JobContext) -> list[Any]:
        context.sleep("x", timedelta(0))
        context.now("x")
        return [context.step("x", lambda: 1), context.patched("x"), context.call("x", child)]

    job = flow.enqueue()
    go(flow, child)
    assert value_of(job) == [1, True, 4]
    kinds = {kind for kind, _name, _status in checkpoints(job)}
    assert kinds == {"sleep", "value", "step", "patch", "child"}


@pytest.mark.parametrize(
    "name", ["", "x" * 256, "nul\x00", "half \ud800", None, 7], ids=lambda name: repr(name)[:12]
)
def test_a_name_that_cannot_be_stored_is_refused_before_the_call(name: Any) -> None:
    calls: list[int] = []

    @workflow
    def flow(context: JobContext) -> None:
        with pytest.raises(DurableError):
            context.step(name, lambda: calls.append(1))

    job = flow.enqueue()
    go(flow)
    assert value_of(job) is None
    assert calls == []


VERBS: dict[str, Any] = {
    "step": lambda context: context.step("inner", int),
    "atomic_step": lambda context: context.atomic_step("inner", int),
    "sleep": lambda context: context.sleep("inner", timedelta(0)),
    "wait_for_signal": lambda context: context.wait_for_signal("inner", timeout=0),
    "start": lambda context: context.start("inner", context.job_type),
    "gather": lambda context: context.gather([]),
    "now": lambda context: context.now("inner"),
    "patched": lambda context: context.patched("inner"),
}


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_inside_a_step_is_refused(verb: str) -> None:
    seen: list[str] = []

    @workflow
    def flow(context: JobContext) -> None:
        def inside() -> None:
            with pytest.raises(DurableError) as caught:
                VERBS[verb](context)
            seen.append(str(caught.value))

        context.step("outer", inside)

    job = flow.enqueue()
    go(flow)
    assert value_of(job) is None
    assert len(seen) == 1
    assert checkpoints(job) == [("step", "outer", "succeeded")]


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_inside_an_open_atomic_is_refused(verb: str) -> None:
    @workflow
    def flow(context: JobContext) -> None:
        with transaction.atomic(), pytest.raises(DurableError, match=r"atomic\(\)"):
            VERBS[verb](context)

    job = flow.enqueue()
    go(flow)
    assert value_of(job) is None
    assert checkpoints(job) == []


@pytest.mark.parametrize("is_async", [False, True])
def test_result_without_a_timeout_is_refused_in_a_step_like_the_other_waits(
    is_async: bool,
) -> None:
    @workflow
    def flow(context: JobContext) -> None:
        def ask() -> None:
            context.job.result()

        async def aask() -> None:
            await context.job.aresult()

        with pytest.raises(DurableError, match="a step can't use the verbs"):
            context.step("ask", aask if is_async else ask)

    job = flow.enqueue()
    go(flow)
    assert value_of(job) is None


def test_result_of_another_job_in_a_step_does_not_park_but_waits() -> None:
    @workflow
    def other(context: JobContext) -> int:
        return 3

    @workflow
    def flow(context: JobContext, awaited: uuid.UUID) -> int:
        value: int = context.step("ask", lambda: Job.objects.get(pk=awaited).result(timeout=0))
        return value

    awaited = other.enqueue()
    go(other)
    job = flow.enqueue(awaited.pk)
    go(flow)
    assert value_of(job) == 3


# Cost.


def test_all_checkpoints_of_a_job_are_read_in_one_query() -> None:
    @workflow(backoff=AT_ONCE)
    def flow(context: JobContext) -> int:
        total = sum(context.step(f"step-{number}", int, number) for number in range(50))
        if context.attempt == 1:
            raise FlakyError
        return total

    job = flow.enqueue()
    go_one(flow)
    runner = Runner(flow)
    claim = runner.take()
    with CaptureQueriesContext(
        connection,
    ) as queries:
        outcome = runner.execute(claim)
    assert len(queries) == 1, [query["sql"] for query in queries]
    runner.record(outcome)
    assert value_of(job) == sum(range(50))


def test_a_replay_takes_time_in_proportion_to_its_steps() -> None:
    took: dict[int, float] = {}

    @workflow(backoff=AT_ONCE)
    def flow(context: JobContext, steps: int) -> None:
        begun = time.process_time()
        for number in range(steps):
            context.step(f"step-{number}", int, number)
        took[steps] = time.process_time() - begun
        if context.attempt == 1:
            raise FlakyError

    for steps in (100, 1000):
        flow.enqueue(steps)
        go(flow)
    # Of the replays, which came last; quadratic work would be a hundred times as much.
    assert took[1000] < 30 * max(took[100], 0.002)


def test_a_step_costs_one_statement_and_an_atomic_step_none_but_its_own_transaction() -> None:
    @workflow
    def flow(context: JobContext) -> None:
        context.step("warm", int)
        for verb in (context.step, context.atomic_step):
            with CaptureQueriesContext(connection) as queries:
                verb(verb.__name__, int)
            statements = [query["sql"].split()[0] for query in queries]
            counts.append([word for word in statements if word not in ("SAVEPOINT", "RELEASE")])

    counts: list[list[str]] = []
    job = flow.enqueue()
    go(flow)
    assert value_of(job) is None
    # The atomic one sets its idle limit first.
    assert counts == [["WITH"], ["SELECT", "WITH"]]


def test_an_error_in_a_checkpoints_own_write_leaves_the_transaction_of_nobody_broken() -> None:
    @workflow(backoff=AT_ONCE)
    def flow(context: JobContext) -> str:
        def write() -> None:
            Group.objects.create(name="written")

        with pytest.raises(DuplicateStep):
            context.step("a", write), context.step("a", write)
        return "on"

    job = flow.enqueue()
    go(flow)
    assert value_of(job) == "on"
    assert Group.objects.filter(name="written").count() == 1
