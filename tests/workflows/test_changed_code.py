"""Code that changes under waiting jobs, replays and forks: what is earned is not done again."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from typing import Any

import pytest

from django_durable import Backoff, JobContext, PermanentFailure, step, workflow
from django_durable.inspection import timeline
from django_durable.jobtypes import registry
from django_durable.models import Job
from django_durable.rehearsal import check_histories, with_history
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


def deploy(func: Any, **options: Any) -> Any:
    """Make this the code of the job type `flow`."""
    old = registry.find("flow")
    if old is not None:
        registry.remove(old)
    return workflow(name="flow", backoff=AT_ONCE, **options)(func)


@pytest.fixture
def calls() -> list[str]:
    """The names of the steps that were really called, in order."""
    return []


@pytest.fixture
def parked(calls: list[str]) -> Job:
    """A job of the old code: a and b are done, it sleeps, and c is still to come."""

    def old(context: JobContext) -> None:
        context.step("a", calls.append, "a")
        context.step("b", calls.append, "b")
        context.sleep("night", HOUR)
        context.step("c", calls.append, "c")

    flow = deploy(old)
    job: Job = flow.enqueue()
    go(flow)
    assert calls == ["a", "b"]
    return job


def test_reordered_steps_do_not_run_again(parked: Job, calls: list[str], advance: Any) -> None:
    def new(context: JobContext) -> None:
        context.step("b", calls.append, "b")
        context.step("c", calls.append, "c")
        context.step("a", calls.append, "a")
        context.sleep("night", HOUR)

    advance(HOUR)
    go(deploy(new))
    assert fresh(parked).status == "SUCCESSFUL"
    assert calls == ["a", "b", "c"]


def test_an_added_step_runs_once_wherever_it_stands(
    parked: Job, calls: list[str], advance: Any
) -> None:
    def new(context: JobContext) -> None:
        context.step("before", calls.append, "before")
        context.step("a", calls.append, "a")
        context.step("between", calls.append, "between")
        context.step("b", calls.append, "b")
        context.sleep("night", HOUR)
        if context.attempt == 1:
            raise FlakyError
        context.step("c", calls.append, "c")

    advance(HOUR)
    go(deploy(new))
    assert fresh(parked).status == "SUCCESSFUL"
    assert calls == ["a", "b", "before", "between", "c"]


def test_a_removed_step_is_not_missed(parked: Job, calls: list[str], advance: Any) -> None:
    def new(context: JobContext) -> None:
        context.step("b", calls.append, "b")
        context.step("c", calls.append, "c")

    advance(HOUR)
    go(deploy(new))
    assert fresh(parked).status == "SUCCESSFUL"
    assert calls == ["a", "b", "c"]


def test_a_renamed_step_runs_again(parked: Job, calls: list[str], advance: Any) -> None:
    def new(context: JobContext) -> None:
        context.step("a2", calls.append, "a2")
        context.step("b", calls.append, "b")
        context.sleep("night", HOUR)

    advance(HOUR)
    go(deploy(new))
    assert calls == ["a", "b", "a2"]


def test_a_job_that_has_gone_further_takes_the_old_way_and_a_new_one_the_new(
    parked: Job, calls: list[str], advance: Any
) -> None:
    def new(context: JobContext) -> list[bool]:
        answers = [context.patched("first")]
        context.step("a", calls.append, "a")
        # Each is asked for itself: an answer is no sign of how far the old code had come.
        answers += [context.patched("second"), context.patched("third")]
        context.step("b", calls.append, "b")
        context.sleep("night", HOUR)
        answers.append(context.patched("ahead"))
        if context.attempt == 1:
            raise FlakyError
        return answers

    flow = deploy(new)
    advance(HOUR)
    go(flow)
    # The recorded answers stand in the second attempt.
    assert value_of(parked) == [False, False, False, True]
    assert fresh(parked).attempt == 2
    job = flow.enqueue()
    go(flow)
    advance(HOUR)
    go(flow)
    assert value_of(job) == [True, True, True, True]


def test_a_step_that_is_new_in_this_run_does_not_hide_what_the_old_code_had_done(
    parked: Job, calls: list[str], advance: Any
) -> None:
    def new(context: JobContext) -> bool:
        context.step("new", calls.append, "new")
        answer = context.patched("after the new one")
        context.step("a", calls.append, "a")
        return answer

    advance(HOUR)
    go(deploy(new))
    assert value_of(parked) is False


def test_a_removed_step_that_lies_behind_is_no_later_one(
    parked: Job, calls: list[str], advance: Any
) -> None:
    def new(context: JobContext) -> bool:
        context.step("b", calls.append, "b")
        context.sleep("night", HOUR)
        return context.patched("after all")

    advance(HOUR)
    go(deploy(new))
    assert value_of(parked) is True


# Async code: what another task is about to reach is no sign of older code.


@pytest.mark.parametrize("first", ["question", "work"])
@pytest.mark.parametrize("number", [1, 5, 10])
def test_a_job_of_the_new_code_takes_the_new_way_beside_a_task_that_replays(
    first: str, number: int
) -> None:
    async def new(context: JobContext) -> bool:
        async def ask() -> bool:
            await context.await_for_signal("word")
            return await context.apatched("new")

        async def work() -> None:
            for index in range(number):
                await context.astep(f"work-{index}", int)

        tasks = [asyncio.ensure_future(ask()), asyncio.ensure_future(work())]
        await asyncio.gather(*(tasks if first == "question" else reversed(tasks)))
        return tasks[0].result() is True

    flow = deploy(new)
    job = flow.enqueue()
    go(flow)
    job.signal("word")
    go(flow)
    assert value_of(job) is True


def test_a_job_of_the_new_code_takes_the_new_way_in_another_attempt() -> None:
    async def new(context: JobContext) -> bool:
        has_worked = asyncio.Event()

        async def ask() -> bool:
            await context.astep("a", int)
            if context.attempt == 1:
                await has_worked.wait()
                raise FlakyError
            return await context.apatched("new")

        async def work() -> None:
            for index in range(10):
                await context.astep(f"work-{index}", int)
            has_worked.set()

        return (await asyncio.gather(ask(), work()))[0]

    flow = deploy(new)
    job = flow.enqueue()
    go(flow)
    assert (value_of(job), fresh(job).attempt) == (True, 2)


def test_a_job_that_has_gone_further_in_a_task_takes_the_old_way_beside_others() -> None:
    async def ask(context: JobContext, *, asks: bool) -> bool:
        await context.astep("a", int)
        answer = await context.apatched("new") if asks else False
        if not answer:
            await context.astep("old", int)
        return answer

    async def work(context: JobContext) -> None:
        for index in range(10):
            await context.astep(f"work-{index}", int)

    async def old(context: JobContext) -> None:
        # What the other task has done lies after all that this one has.
        await asyncio.gather(ask(context, asks=False))
        await asyncio.gather(work(context))
        raise FlakyError

    async def new(context: JobContext) -> bool:
        return (await asyncio.gather(ask(context, asks=True), work(context)))[0]

    job = deploy(old).enqueue()
    go_one(registry.get("flow"))
    go(deploy(new))
    assert (value_of(job), fresh(job).attempt) == (False, 2)


def test_logger_and_progress_are_silent_while_the_run_replays(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def new(context: JobContext) -> None:
        context.logger.info("begin %s", context.attempt)
        context.step("a", int)
        context.logger.info("middle %s", context.attempt)
        context.progress(context.attempt, 9)
        context.step("b", int)
        context.step("c", int)
        if context.attempt == 1:
            raise FlakyError
        context.step("d", int)
        context.logger.info("end %s", context.attempt)

    caplog.set_level(logging.INFO, "django_durable.job")
    flow = deploy(new)
    job = flow.enqueue()
    go(flow)
    said = [record.getMessage() for record in caplog.records if record.name.endswith(".job")]
    assert said == ["begin 1", "middle 1", "end 2"]
    assert fresh(job).progress["done"] == 1


# Replays and forks.


@pytest.fixture
def dead(calls: list[str]) -> Job:
    """A checkout that had charged and shipped, and then died."""

    @workflow(name="parcel")
    def parcel(context: JobContext) -> str:
        calls.append("parcel")
        return str(context.job.pk)

    def checkout(context: JobContext, order: int = 1) -> list[Any]:
        charge = context.step("charge", lambda: (calls.append("charge"), order)[1])
        shipped = context.call("ship", parcel)
        word = context.wait_for_signal("word", timeout=0)
        context.step("book", book, calls)
        return [charge, shipped, word, context.delivery_key]

    flow = deploy(checkout, max_attempts=1)
    job: Job = flow.using(idempotency_key="order-1").enqueue()
    job.signal("word", "given")
    go(flow, parcel)
    assert fresh(job).status == "DEAD"
    assert calls == ["charge", "parcel", "book"]
    return fresh(job)


def book(calls: list[str]) -> None:
    calls.append("book")
    if calls.count("book") == 1:
        raise PermanentFailure("the books are closed")


def run_all() -> None:
    go(registry.get("flow"), registry.get("parcel"))


def test_a_replay_resumes_with_what_was_earned(dead: Job, calls: list[str]) -> None:
    before = checkpoints(dead)
    assert dead.dead_letter is not None
    new = dead.dead_letter.replay()
    run_all()
    charge, shipped, word, key = value_of(new)
    # The child of the copied checkpoint is the old one.
    assert shipped == str(dead.children.get().pk)
    assert (charge, word) == (1, "given")
    assert key == str(dead.pk)
    assert calls == ["charge", "parcel", "book", "book"]
    assert checkpoints(dead) == before
    assert fresh(dead).status == "DEAD"
    assert fresh(new).idempotency_key == "order-1"


def test_a_replay_from_a_step_does_that_and_what_came_after_again(
    dead: Job, calls: list[str]
) -> None:
    assert dead.dead_letter is not None
    new = dead.dead_letter.replay(from_step="ship")
    run_all()
    _charge, shipped, _word, _key = value_of(new)
    assert shipped == str(fresh(new).children.get().pk)
    assert calls == ["charge", "parcel", "book", "parcel", "book"]


def test_a_replay_with_new_arguments_starts_afresh(dead: Job, calls: list[str]) -> None:
    assert dead.dead_letter is not None
    new = dead.dead_letter.replay(args=[2])
    new.signal("word", "anew")
    run_all()
    charge, _shipped, word, key = value_of(new)
    assert (charge, word) == (2, "anew")
    assert key == str(dead.pk)
    assert calls == ["charge", "parcel", "book", "charge", "parcel", "book"]


def test_a_replay_with_new_arguments_from_a_step_keeps_what_was_before(
    dead: Job, calls: list[str]
) -> None:
    assert dead.dead_letter is not None
    new = dead.dead_letter.replay(args=[2], from_step="book")
    run_all()
    assert value_of(new)[0] == 1
    assert calls == ["charge", "parcel", "book", "book"]


def test_a_replay_of_a_replay_keeps_the_delivery_key(dead: Job, calls: list[str]) -> None:
    assert dead.dead_letter is not None
    calls.remove("book")
    first = dead.dead_letter.replay()
    run_all()
    letter = fresh(first).dead_letter
    assert letter is not None
    second = letter.replay()
    run_all()
    assert value_of(second)[3] == str(dead.pk)


def test_a_step_that_was_not_recorded_cannot_be_replayed_from(dead: Job) -> None:
    assert dead.dead_letter is not None
    with pytest.raises(ValueError, match="charge"):
        dead.dead_letter.replay(from_step="never")
    dead.dead_letter.refresh_from_db()
    assert dead.dead_letter.replayed_as is None


def test_a_bulk_replay_resumes_too(dead: Job, calls: list[str]) -> None:
    from django_durable.models import DeadLetter

    (new,) = DeadLetter.objects.filter(job=dead).replay()
    run_all()
    assert value_of(new)[0] == 1
    assert calls.count("charge") == 1


def test_a_fork_starts_afresh_and_leaves_the_old_job_and_its_key_alone(
    dead: Job, calls: list[str]
) -> None:
    before = (checkpoints(dead), fresh(dead).idempotency_key, fresh(dead).status)
    new = dead.fork()
    new.signal("word", "anew")
    run_all()
    assert value_of(new)[2:] == ["anew", str(new.pk)]
    assert calls.count("charge") == 2
    assert (checkpoints(dead), fresh(dead).idempotency_key, fresh(dead).status) == before
    assert fresh(new).idempotency_key is None
    assert dead.dead_letter is not None
    dead.dead_letter.refresh_from_db()
    assert dead.dead_letter.replayed_as is None


def test_a_fork_names_the_job_that_it_is_like(dead: Job) -> None:
    new = dead.fork()
    assert (new.forked_from, fresh(dead).forked_from) == (dead.pk, None)
    assert timeline(new)[0].text == f"enqueued as a fork of {dead.pk}"
    assert fresh(new.fork(from_step=None)).forked_from == new.pk


def test_a_fork_from_a_step_has_what_was_earned_before_it(dead: Job, calls: list[str]) -> None:
    new = dead.fork(from_step="book", args=[5])
    run_all()
    charge, shipped, _word, _key = value_of(new)
    assert charge == 1
    assert shipped == str(dead.children.get().pk)
    assert calls == ["charge", "parcel", "book", "book"]


def test_a_job_of_any_status_can_be_forked(parked: Job, calls: list[str], advance: Any) -> None:
    new = parked.fork(from_step="night")
    flow = registry.get("flow")
    go(flow)
    assert fresh(new).status == "WAITING"
    assert calls == ["a", "b"]
    advance(HOUR + timedelta(seconds=1))
    go(flow)
    assert {fresh(parked).status, fresh(new).status} == {"SUCCESSFUL"}
    assert calls == ["a", "b", "c", "c"]


# What is earned out of order has its place in the order of the code all the same.


def earned(job: Job) -> list[str]:
    """Return the names of the checkpoints in their order."""
    return list(job.steps.order_by("ordinal", "pk").values_list("name", flat=True))


def test_a_step_that_a_replay_earns_anew_lies_where_it_was() -> None:
    closed = [True]
    taken_back: list[str] = []

    @step(compensate=lambda value: taken_back.append(value))
    def charge() -> str:
        return "charged"

    @workflow(backoff=AT_ONCE, max_attempts=1)
    def order(context: JobContext) -> None:
        context.step("charge", charge)
        context.step("reserve", int)
        context.step("mail", int)
        if closed:
            raise PermanentFailure("closed")

    job = order.enqueue()
    go(order)
    assert taken_back == ["charged"]
    closed.clear()
    letter = fresh(job).dead_letter
    assert letter is not None
    new = letter.replay()
    assert earned(new) == ["reserve", "mail"]
    go(order)
    assert fresh(new).status == "SUCCESSFUL"
    assert earned(new) == ["charge", "reserve", "mail"]
    assert earned(fresh(new).fork(from_step="mail")) == ["charge", "reserve"]


def added(calls: list[str]) -> Any:
    """Return code that has more steps than the old one, around its first two."""

    def new(context: JobContext) -> None:
        context.step("first", calls.append, "first")
        context.step("second", calls.append, "second")
        context.step("a", calls.append, "a")
        context.step("one", calls.append, "one")
        context.step("two", calls.append, "two")
        context.step("b", calls.append, "b")
        context.sleep("night", HOUR)
        context.step("c", calls.append, "c")

    return new


@pytest.mark.parametrize(
    ("step", "before"),
    [
        ("first", []),
        ("second", ["first"]),
        ("a", ["first", "second"]),
        ("one", ["first", "second", "a"]),
        ("two", ["first", "second", "a", "one"]),
        ("b", ["first", "second", "a", "one", "two"]),
        ("c", ["first", "second", "a", "one", "two", "b", "night"]),
    ],
)
def test_a_fork_has_what_a_deploy_has_put_before_the_step(
    parked: Job, calls: list[str], advance: Any, step: str, before: list[str]
) -> None:
    advance(HOUR)
    flow = deploy(added(calls))
    go(flow)
    whole = ["first", "second", "a", "one", "two", "b", "night", "c"]
    assert earned(parked) == whole
    new = fresh(parked).fork(from_step=step)
    assert earned(new) == before
    advance(2 * HOUR)
    go(flow)
    advance(3 * HOUR)
    go(flow)
    assert earned(new) == whole


def test_what_a_replay_leaves_to_the_old_job_is_what_it_does_not_copy(
    parked: Job, calls: list[str], advance: Any
) -> None:
    @step(compensate=calls.append)
    def buy(name: str) -> str:
        return name

    def new(context: JobContext) -> None:
        context.step("a", calls.append, "a")
        context.step("one", buy, "one")
        context.step("two", buy, "two")
        context.step("b", calls.append, "b")
        context.sleep("night", HOUR)
        raise PermanentFailure("closed")

    advance(HOUR)
    flow = deploy(new)
    go_one(flow)
    parked = fresh(parked)
    # The undo job has come to nothing, so that there is something to leave.
    parked.children.get().cancel()
    assert parked.dead_letter is not None
    again = parked.dead_letter.replay(from_step="two")
    assert earned(again) == ["a", "one"]
    left = parked.steps.filter(undo_name__isnull=False)
    assert [found.name for found in left] == ["two"]


def test_steps_of_one_place_are_taken_back_in_reverse_order(
    parked: Job, calls: list[str], advance: Any
) -> None:
    @step(compensate=lambda value, *_: calls.append(value))
    def buy(name: str) -> str:
        return name

    names = ["one", "two", "three", "four"]

    def new(context: JobContext) -> None:
        context.step("a", calls.append, "a")
        for name in names:
            context.step(name, buy, name)
        context.step("b", calls.append, "b")
        raise PermanentFailure("closed")

    advance(HOUR)
    go(deploy(new))
    assert calls == ["a", "b", *reversed(names)]


def test_a_step_with_tries_left_keeps_its_place(
    parked: Job, calls: list[str], advance: Any
) -> None:
    failing = [True]

    @step(max_attempts=3, backoff=Backoff(initial=HOUR, jitter=0.0))
    def try_it() -> None:
        if failing:
            failing.clear()
            raise FlakyError

    def new(context: JobContext) -> None:
        context.step("a", calls.append, "a")
        context.step("tried", try_it)
        context.step("after", calls.append, "after")
        context.step("b", calls.append, "b")
        context.sleep("night", HOUR)

    advance(HOUR)
    flow = deploy(new)
    go(flow)
    assert fresh(parked).status == "WAITING"
    advance(3 * HOUR)
    go(flow)
    assert fresh(parked).status == "SUCCESSFUL"
    assert earned(parked) == ["a", "tried", "after", "b", "night"]
    assert earned(fresh(parked).fork(from_step="after")) == ["a", "tried"]


def test_many_children_of_one_place_keep_their_order(
    parked: Job, calls: list[str], advance: Any
) -> None:
    @workflow(name="parcel")
    def parcel(context: JobContext) -> None:
        pass

    def new(context: JobContext) -> None:
        context.step("a", calls.append, "a")
        context.start_many("child", parcel, [((), {})] * 12)
        context.step("b", calls.append, "b")
        context.sleep("night", HOUR)

    advance(HOUR)
    go(deploy(new), parcel)
    assert fresh(parked).status == "SUCCESSFUL"
    names = [f"child-{number}" for number in range(12)]
    assert earned(parked) == ["a", *names, "b", "night"]
    assert earned(fresh(parked).fork(from_step="child-10")) == ["a", *names[:10]]


def test_answers_about_patches_go_by_the_order_of_one_place(
    parked: Job, calls: list[str], advance: Any
) -> None:
    answers: dict[str, bool] = {}

    def second(context: JobContext) -> None:
        context.step("a", calls.append, "a")
        context.step("one", calls.append, "one")
        context.step("two", calls.append, "two")
        context.sleep("evening", 3 * HOUR)

    def third(context: JobContext) -> None:
        context.step("a", calls.append, "a")
        answers["before one"] = context.patched("before one")
        context.step("one", calls.append, "one")
        answers["before two"] = context.patched("before two")
        context.step("two", calls.append, "two")
        context.sleep("evening", 3 * HOUR)
        answers["ahead"] = context.patched("ahead")

    parked.steps.exclude(name__in=["a", "b"]).delete()
    # What lies behind the place of the new ones is no step, and says nothing about patches.
    parked.steps.filter(name="b").update(kind="patch")
    advance(HOUR)
    go(deploy(second))
    assert earned(parked) == ["a", "one", "two", "evening", "b"]
    advance(5 * HOUR)
    go(deploy(third))
    assert fresh(parked).status == "SUCCESSFUL"
    assert answers == {"before one": False, "before two": False, "ahead": True}


def test_what_runs_at_once_lies_before_what_was_recorded_after_it(
    parked: Job, calls: list[str], advance: Any
) -> None:
    async def pause(name: str) -> None:
        await asyncio.sleep(0.01)
        calls.append(name)

    names = ["w", "x", "y", "z"]

    async def new(context: JobContext) -> None:
        await context.astep("a", pause, "a")
        await asyncio.gather(*(context.astep(name, pause, name) for name in names))
        await context.astep("b", pause, "b")
        await context.asleep("night", HOUR)
        await asyncio.gather(*(context.astep(f"late {name}", pause, name) for name in names))
        await context.astep("c", pause, "c")

    advance(HOUR)
    go(deploy(new))
    assert fresh(parked).status == "SUCCESSFUL"
    found = earned(parked)
    assert (found[0], found[5:7], found[-1]) == ("a", ["b", "night"], "c")
    assert sorted(found[1:5]) == names
    assert sorted(found[7:-1]) == [f"late {name}" for name in names]
    assert earned(fresh(parked).fork(from_step="b")) == found[:5]


def test_the_places_of_added_steps_are_no_disorder_to_a_rehearsal(
    parked: Job, calls: list[str], advance: Any
) -> None:
    advance(HOUR)
    go(deploy(added(calls)))
    checked = check_histories(with_history(Job.objects.all()))
    assert (checked.count, checked.findings) == (1, [])
