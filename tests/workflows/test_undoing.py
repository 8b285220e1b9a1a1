"""Undo jobs: what a dead or cancelled job has earned is taken back, in reverse order."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from django.db import connection

from django_durable import (
    DurableError,
    JobContext,
    PermanentFailure,
    faults,
    step,
    workflow,
)
from django_durable.models import DeadLetter, Job
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
    lose,
)

pytestmark = pytest.mark.django_db


class CancelItself(Exception):  # noqa: N818 - it is never raised
    """Say that the undo job is to be cancelled meanwhile."""


# What was taken back, and which purchases resist it: how often, and with which error.
taken: list[Any] = []
resisting: dict[str, tuple[int, type[Exception]]] = {}


@pytest.fixture(autouse=True)
def _clean() -> None:
    taken.clear()
    resisting.clear()


def take_back(receipt: str, name: str, price: int = 0) -> None:
    """Take a purchase back, unless it resists."""
    times, error = resisting.get(name, (0, FlakyError))
    if times:
        resisting[name] = (times - 1, error)
        if error is CancelItself:
            Job.all_objects.get(metadata__has_key="undo").cancel("enough")
        else:
            raise error(name)
    taken.append((receipt, name, price))


@step(compensate=take_back)
def buy(name: str, price: int = 0) -> str:
    """Buy something; return the receipt."""
    return f"receipt of {name}"


@workflow(name="undoing.shop", max_attempts=2, backoff=AT_ONCE)
def shop(context: JobContext, end: str) -> str:
    """Buy three things, and end as the test says."""
    context.step("bread", buy, "bread")
    context.step("look", len, "abc")
    context.atomic_step("milk", buy, "milk", price=2)
    if end == "broken":
        raise FlakyError("broken")
    if end == "refused":
        raise PermanentFailure("refused")
    if end == "waiting":
        context.wait_for_signal("word")
    context.step("wine", buy, "wine", 9)
    return "done"


@step(max_attempts=3, backoff=AT_ONCE, compensate=take_back)
def insist(name: str) -> str:
    """Buy something, however often that takes."""
    if resisting.pop(name, None):
        raise FlakyError(name)
    return f"receipt of {name}"


@workflow(name="undoing.stubborn")
def stubborn(context: JobContext) -> None:
    """Buy two things that may resist, and die."""
    context.step("bread", insist, "bread")
    context.atomic_step("milk", insist, "milk")
    raise PermanentFailure("refused")


@workflow(name="undoing.half")
def half(context: JobContext) -> None:
    """Buy two things by functions that have some of their arguments already, and die."""
    context.step("bread", partial(buy, "bread", price=2), price=1)
    context.atomic_step("milk", partial(partial(buy, "milk"), 3))
    raise PermanentFailure("refused")


def undo_of(job: Job) -> Job:
    """Return the undo job of a job."""
    undo: Job = Job.all_objects.get(metadata__undo=str(job.pk), parent=job)
    return undo


def made(end: str, **options: Any) -> Job:
    """Return a job that has run until it ended or waits."""
    job = shop.using(**options).enqueue(end)
    for _ in range(job.max_attempts or 1):
        go_one(shop)
        if fresh(job).status != "READY":
            break
    return fresh(job)


MILK, BREAD = ("receipt of milk", "milk", 2), ("receipt of bread", "bread", 0)
BOTH = [("compensation", "milk", "succeeded"), ("compensation", "bread", "succeeded")]


@pytest.mark.parametrize(("end", "reason"), [("broken", "exhausted"), ("refused", "permanent")])
def test_a_death_is_final_at_once_and_taken_back_in_reverse_order(end: str, reason: str) -> None:
    job = made(end)
    assert (job.status, job.dead_letter.reason) == ("DEAD", reason)
    undo = undo_of(job)
    assert (undo.status, undo.name, undo.root, undo.attempt) == ("READY", job.name, job, 0)
    assert undo.metadata == {"undo": str(job.pk)}
    assert taken == []
    go(shop)
    undo.refresh_from_db()
    assert (undo.status, undo.return_value) == ("SUCCESSFUL", 2)
    assert taken == [MILK, BREAD]
    assert checkpoints(undo) == BOTH
    assert fresh(job).status == "DEAD"
    assert not Job.all_objects.filter(metadata__undo=str(undo.pk)).exists()


@pytest.mark.parametrize("name", ["bread", "milk"])
def test_a_step_that_succeeded_at_a_later_try_is_taken_back_too(name: str) -> None:
    resisting[name] = (1, FlakyError)
    job = stubborn.enqueue()
    go(stubborn)
    assert fresh(job).status == "DEAD"
    assert taken == [("receipt of milk", "milk", 0), ("receipt of bread", "bread", 0)]


bought: list[Any] = []


def give_up(receipt: str, items: Any) -> None:
    """Take a whole list back."""
    taken.append((receipt, items))


@step(compensate=give_up)
def use_up(items: Any) -> str:
    """Buy what is listed, and strike it off the list."""
    bought.append(list(items))
    items.clear()
    return "receipt"


@pytest.mark.parametrize("verb", ["step", "atomic_step", "astep"])
def test_a_compensation_gets_the_arguments_as_they_were_before_the_call(verb: str) -> None:
    if verb == "astep":

        @workflow
        async def flow(context: JobContext) -> None:
            await context.astep("buy", use_up, ["bread"])
            raise PermanentFailure("refused")

    else:

        @workflow
        def flow(context: JobContext) -> None:
            getattr(context, verb)("buy", use_up, ["bread"])
            raise PermanentFailure("refused")

    flow.enqueue()
    go(flow)
    assert taken == [("receipt", ["bread"])]


def test_what_could_not_be_taken_back_is_not_done() -> None:
    @workflow
    def flow(context: JobContext) -> None:
        context.step("buy", use_up, [object()])

    bought.clear()
    job = flow.enqueue()
    go(flow)
    assert bought == []
    assert fresh(job).dead_letter.error_class == "PayloadError"


def test_a_lost_last_attempt_is_taken_back_too() -> None:
    job = shop.using(max_attempts=1).enqueue("ends")
    context = context_of(Runner(shop).take())
    context.step("bread", buy, "bread")
    lose(job)
    assert fresh(job).dead_letter.reason == "lost"
    go(shop)
    assert taken == [BREAD]
    assert checkpoints(undo_of(job)) == BOTH[1:]


def test_a_cancel_of_a_parked_job_takes_back() -> None:
    job = made("waiting")
    assert job.status == "WAITING"
    assert job.cancel("enough") == "cancelled"
    assert undo_of(job).status == "READY"
    go(shop)
    assert fresh(job).status == "CANCELLED"
    assert taken == [MILK, BREAD]


def test_a_running_job_that_is_cancelled_takes_back() -> None:
    @workflow
    def flow(context: JobContext) -> None:
        context.step("bread", buy, "bread")
        assert fresh(context.job).cancel() == "requested"
        context.check_cancelled()

    job = flow.enqueue()
    go(flow)
    assert fresh(job).status == "CANCELLED"
    assert taken == [BREAD]


def test_a_success_is_not_taken_back_nor_what_nothing_was_bought_in() -> None:
    @workflow(max_attempts=1)
    def idle(context: JobContext) -> None:
        context.step("look", len, "abc")
        raise FlakyError

    done = made("ends")
    assert done.status == "SUCCESSFUL"
    idle.enqueue()
    go(idle, shop)
    assert taken == []
    assert not Job.all_objects.filter(metadata__has_key="undo").exists()


def test_a_compensation_that_fails_is_tried_again_and_the_order_kept() -> None:
    resisting["milk"] = (1, FlakyError)
    job = made("refused")
    go_one(shop)
    undo = undo_of(job)
    assert (undo.status, undo.attempt, taken) == ("READY", 1, [])
    go(shop)
    assert taken == [MILK, BREAD]
    assert undo_of(job).attempt == 2


@pytest.mark.parametrize("times", [2, 3])
def test_a_policy_of_the_compensation_counts_its_own_tries(times: int) -> None:
    @step(max_attempts=3, backoff=AT_ONCE)
    def give_back(receipt: str, name: str) -> None:
        take_back(receipt, name)

    @step(compensate=give_back)
    def borrow(name: str) -> str:
        return name

    @workflow(max_attempts=1)
    def flow(context: JobContext) -> None:
        context.step("bread", borrow, "bread")
        context.step("book", borrow, "book")
        raise FlakyError

    resisting["book"] = (times, FlakyError)
    job = flow.enqueue()
    go(flow)
    assert taken[-1][1] == "bread"
    assert undo_of(job).status == ("SUCCESSFUL" if times == 2 else "DEAD")
    assert undo_of(job).steps.get(name="book").tries == min(times, 3)


def test_an_undo_job_that_crashed_goes_on_where_it_was() -> None:
    job = made("refused")
    undo = undo_of(job)
    runner = Runner(shop)
    claim = runner.take()
    resisting["bread"] = (1, KeyboardInterrupt)  # type: ignore[assignment]
    # It ends before the second compensation is recorded, and nothing of its end is.
    runner.execute(claim)
    assert taken == [MILK]
    lose(undo)
    assert [attempt.outcome for attempt in undo.attempts.all()] == ["lost"]
    go(shop)
    assert taken == [MILK, BREAD]
    assert checkpoints(undo) == BOTH


def test_a_crash_after_a_compensation_is_recorded_finds_its_step_marked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = made("refused", max_attempts=1)
    undo = undo_of(job)
    claim = Runner(shop).take()

    def die(point: str) -> None:
        if point == "after_step_record":
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(faults, "hook", die)
        Runner(shop).execute(claim)
    assert taken == [MILK]
    lose(undo)
    assert fresh(undo).dead_letter.reason == "lost"
    assert checkpoints(undo) == BOTH[:1]
    assert [step.name for step in job.steps.filter(compensated=True)] == ["milk"]
    # What it has not recorded, its replay takes back.
    undo.dead_letter.replay()
    go(shop)
    assert taken[-1] == BREAD
    assert checkpoints(job.dead_letter.replay()) == [("step", "look", "succeeded")]


def test_what_an_older_version_has_recorded_and_not_marked_is_marked() -> None:
    resisting["bread"] = (1, FlakyError)
    job = made("refused")
    go_one(shop)
    assert checkpoints(undo_of(job)) == BOTH[:1]
    job.steps.update(compensated=False)
    go(shop)
    assert taken == [MILK, BREAD]
    assert job.steps.filter(compensated=True).count() == 2


def buy_again(_taken: None, receipt: str, name: str) -> None:
    """Take back that a purchase was taken back."""
    taken.append(("again", name))


@step(compensate=buy_again)
def take_back_for_now(receipt: str, name: str) -> None:
    """Take a purchase back by a step that could be taken back itself."""
    take_back(receipt, name)


@step(compensate=take_back_for_now)
def rent(name: str) -> str:
    """Rent something."""
    return f"receipt of {name}"


@workflow(name="undoing.bookshop", max_attempts=1)
def library(context: JobContext) -> None:
    """Rent two things, and die."""
    context.step("film", rent, "film")
    context.step("book", rent, "book")
    raise PermanentFailure("refused")


@pytest.mark.parametrize("end", ["dead", "cancelled", "lost"])
def test_nothing_undoes_an_undo_job(end: str) -> None:
    if end == "cancelled":
        resisting["book"] = (1, CancelItself)
    else:
        resisting["film"] = (1, PermanentFailure)
    job = library.enqueue()
    go_one(library)
    undo = undo_of(job)
    if end == "lost":
        resisting["film"] = (1, KeyboardInterrupt)  # type: ignore[assignment]
        runner = Runner(library)
        runner.execute(runner.take())
        lose(undo)
    go(library)
    assert fresh(undo).status == ("CANCELLED" if end == "cancelled" else "DEAD")
    assert ("again", "book") not in taken
    assert list(Job.all_objects.filter(metadata__has_key="undo")) == [undo]


def test_one_that_fails_for_good_is_recorded_and_the_others_are_taken_back() -> None:
    resisting["milk"] = (1, PermanentFailure)
    job = made("refused")
    go(shop)
    undo = undo_of(job)
    assert taken == [BREAD]
    assert undo.status == "DEAD"
    assert undo.dead_letter.message == "could not be taken back: milk"
    assert checkpoints(undo) == [("compensation", "milk", "failed"), BOTH[1]]
    # To be replayed like any other: only what was not taken back is.
    again = undo.dead_letter.replay()
    go(shop)
    assert taken == [BREAD, MILK]
    assert fresh(again).status == "SUCCESSFUL"


def test_after_the_last_attempt_what_may_be_mended_is_recorded_as_failed() -> None:
    resisting["milk"] = (2, FlakyError)
    job = made("refused")
    go(shop)
    undo = undo_of(job)
    assert (undo.status, undo.attempt) == ("DEAD", 2)
    assert checkpoints(undo) == [("compensation", "milk", "failed"), BOTH[1]]
    assert taken == [BREAD]


def test_code_without_the_compensation_is_a_failure_that_says_so() -> None:
    @workflow(max_attempts=1)
    def flow(context: JobContext) -> None:
        context.step("gone", buy, "bread")
        raise FlakyError

    job = flow.enqueue()
    go_one(flow)
    job.steps.update(undo_name="no.module.no_step")
    go(flow)
    assert "has no compensation" in undo_of(job).steps.get().message


# Replays.


def test_a_job_is_not_replayed_before_its_undo_job_has_ended() -> None:
    job = made("refused")
    with pytest.raises(DurableError, match=str(undo_of(job).pk)):
        job.dead_letter.replay()
    assert DeadLetter.objects.replay() == []
    go(shop)
    # A replay earns anew what was taken back, and keeps the rest.
    again = job.dead_letter.replay()
    assert checkpoints(again) == [("step", "look", "succeeded")]


def test_what_is_being_taken_back_is_not_copied_into_a_fork() -> None:
    job = made("refused")
    with pytest.raises(DurableError, match=str(undo_of(job).pk)):
        job.fork("milk")
    assert Job.objects.filter(forked_from=job.pk).count() == 0
    afresh = job.fork()
    assert checkpoints(afresh) == []
    go_one(shop)
    go(shop)
    assert checkpoints(job.fork("milk")) == [("step", "look", "succeeded")]


def test_a_partial_function_keeps_the_policy_and_all_arguments() -> None:
    job = half.enqueue()
    go(half)
    assert fresh(job).status == "DEAD"
    assert taken == [("receipt of milk", "milk", 3), ("receipt of bread", "bread", 1)]


def test_a_job_is_not_replayed_while_its_undo_job_is_replayed() -> None:
    resisting["milk"] = (1, PermanentFailure)
    job = made("refused")
    go(shop)
    again = undo_of(job).dead_letter.replay()
    with pytest.raises(DurableError, match=str(again.pk)):
        job.dead_letter.replay()
    go(shop)
    assert job.dead_letter.replay().status == "READY"


def test_what_a_replay_goes_by_is_its_own_to_take_back() -> None:
    resisting["milk"] = (1, PermanentFailure)
    job = made("refused")
    go(shop)
    again = job.dead_letter.replay()
    assert ("step", "milk", "succeeded") in checkpoints(again)
    # The old undo job comes too late for the milk, which is not sold twice.
    late = undo_of(job).dead_letter.replay()
    runner = Runner(shop)
    for claim in runner.claim():
        runner.record(runner.execute(claim))
    assert fresh(late).return_value == 1
    assert taken == [BREAD]
    # The replay bought bread anew; all that it has is taken back when it dies, too.
    assert fresh(again).status == "DEAD"
    go(shop)
    # The bread lies before the milk still.
    assert taken == [BREAD, MILK, BREAD]


def test_a_replay_with_new_arguments_leaves_the_old_purchases_to_the_old_undo_job() -> None:
    resisting["milk"] = (1, PermanentFailure)
    job = made("refused")
    go(shop)
    again = job.dead_letter.replay(args=["ends"])
    undo_of(job).dead_letter.replay()
    go(shop)
    assert fresh(again).return_value == "done"
    assert taken == [BREAD, MILK]


@pytest.mark.parametrize("is_over", [False, True])
def test_an_undo_job_is_not_forked(*, is_over: bool) -> None:
    calls: list[str] = []

    @step(compensate=lambda value: calls.append(value))
    def charge() -> str:
        return "charged"

    @workflow(max_attempts=1)
    def order(context: JobContext) -> None:
        context.step("charge", charge)
        raise PermanentFailure("closed")

    job = order.enqueue()
    go_one(order)
    undo = Job.objects.get(metadata={"undo": str(job.pk)})
    if is_over:
        go_one(order)
    with pytest.raises(DurableError, match="can't be forked"):
        undo.fork()
    with pytest.raises(DurableError, match="can't be forked"):
        undo.fork(args=[], kwargs={})
    go(order)
    assert calls == ["charged"]


def test_a_fork_does_not_take_back_what_the_old_job_has_earned() -> None:
    job = made("waiting")
    fork = job.fork(from_step="milk", args=["refused"])
    go(shop)
    assert fresh(fork).status == "DEAD"
    assert taken == [MILK]
    assert fresh(job).status == "WAITING"


def died_again(job: Job) -> Job:
    """Return the replay of a dead job whose undo job was cancelled; it has died like that one."""
    undo_of(job).cancel()
    again = job.dead_letter.replay()
    assert checkpoints(again) == checkpoints(job)
    go_one(shop)
    return fresh(again)


def test_what_a_replay_has_taken_back_no_copy_of_it_goes_by() -> None:
    job = made("refused")
    again = died_again(job)
    with pytest.raises(DurableError, match=str(undo_of(again).pk)):
        job.fork("milk")
    go(shop)
    assert taken == [MILK, BREAD]
    assert checkpoints(job.fork("milk")) == [("step", "look", "succeeded")]
    for each in (job, again):
        assert set(each.steps.filter(compensated=True).values_list("name", flat=True)) == {
            "bread",
            "milk",
        }


def test_what_a_replay_has_earned_anew_is_another_step_than_the_old_one() -> None:
    job = made("refused")
    undo_of(job).cancel()
    again = job.dead_letter.replay(from_step="milk")
    go(shop)
    assert fresh(again).status == "DEAD"
    # The bread was copied. There are two bottles, of which the old one is the old job's.
    assert taken == [MILK, BREAD]
    assert list(job.steps.filter(compensated=True).values_list("name", flat=True)) == ["bread"]


def test_what_the_old_job_takes_back_a_replay_of_its_fork_earns_anew() -> None:
    job = made("waiting")
    fork = job.fork(from_step="milk", args=["refused"])
    go_one(shop)
    assert fresh(fork).status == "DEAD"
    go(shop)
    assert taken == [MILK]
    job.cancel()
    with pytest.raises(DurableError, match=str(undo_of(job).pk)):
        fresh(fork).dead_letter.replay()
    go(shop)
    assert taken == [MILK, MILK, BREAD]
    assert checkpoints(fresh(fork).dead_letter.replay()) == [("step", "look", "succeeded")]


def test_a_fork_that_has_copied_nothing_is_replayed_whatever_the_old_job_takes_back() -> None:
    job = made("waiting")
    fork = job.fork(args=["refused"])
    go(shop)
    job.cancel()
    assert fresh(undo_of(job)).status == "READY"
    assert fresh(fork).dead_letter.replay().status == "READY"


# Where it is born, and who cancels it.


def test_an_undo_job_is_born_whatever_the_depth(settings: Any) -> None:
    settings.DURABLE_MAX_DEPTH = 1

    @workflow
    def parent(context: JobContext) -> None:
        context.call("shop", shop, "refused")

    job = parent.enqueue()
    go(parent, shop)
    child = job.children.get()
    assert (child.depth, undo_of(child).depth) == (1, 2)
    assert undo_of(child).status == "SUCCESSFUL"
    assert taken == [MILK, BREAD]


def test_a_cancelled_tree_bears_undo_jobs_which_only_their_name_cancels() -> None:
    @workflow
    def parent(context: JobContext) -> None:
        context.step("bread", buy, "bread")
        context.call("shop", shop, "waiting")

    job = parent.enqueue()
    go(parent, shop)
    child = job.children.get()
    job.cancel()
    assert (fresh(job).status, fresh(child).status) == ("CANCELLED", "CANCELLED")
    undos = [undo_of(job), undo_of(child)]
    job.cancel()
    child.cancel()
    assert [fresh(undo).status for undo in undos] == ["READY", "READY"]
    assert undos[1].cancel("no use") == "cancelled"
    go(parent, shop)
    assert taken == [BREAD]
    assert fresh(undos[1]).cancel_reason == "no use"
    # Nothing undoes an undo job.
    assert Job.all_objects.filter(metadata__has_key="undo").count() == 2


def test_a_running_undo_job_learns_of_its_cancel_at_the_next_compensation() -> None:
    job = made("refused")
    undo = undo_of(job)
    resisting["milk"] = (1, CancelItself)
    go(shop)
    undo.refresh_from_db()
    assert (undo.status, undo.cancel_reason) == ("CANCELLED", "enough")
    assert checkpoints(undo) == BOTH[:1]
    assert taken == [MILK]
    # What was not taken back, a replay of the job goes by.
    assert ("step", "bread", "succeeded") in checkpoints(job.dead_letter.replay())


def test_an_undo_job_of_async_steps_and_of_an_async_workflow() -> None:
    async def refund(receipt: str, name: str) -> None:
        taken.append((receipt, name))

    @step(compensate=refund)
    async def order(name: str) -> str:
        return f"order of {name}"

    @workflow(max_attempts=1)
    async def flow(context: JobContext) -> None:
        await context.astep("order", order, "beer")
        raise FlakyError

    job = flow.enqueue()
    go(flow)
    assert taken == [("order of beer", "beer")]
    assert undo_of(job).status == "SUCCESSFUL"


def test_an_undo_job_has_the_options_of_its_job() -> None:
    job = made("refused", queue_name="letters", priority=7, max_attempts=4, timeout=HOUR)
    undo = undo_of(job)
    assert (undo.queue_name, undo.priority, undo.max_attempts) == ("letters", 7, 4)
    assert undo.options == {"timeout": timedelta(hours=1).total_seconds()}


def test_nobody_else_makes_an_undo_job() -> None:
    with pytest.raises(ValueError, match="undo"):
        shop.using(metadata={"undo": "me"})


@pytest.mark.parametrize(
    ("column", "text"),
    [("value", "{no JSON"), ("undo_call", "[no JSON"), ("undo_call", "5"), ("undo_name", ".")],
)
def test_a_step_that_nobody_can_read_is_recorded_and_the_others_are_taken_back(
    column: str, text: str
) -> None:
    job = made("broken")
    with connection.cursor() as cursor:
        cursor.execute(
            f"UPDATE durable_step SET {column} = %s WHERE job_id = %s AND name = 'milk'",
            [text, job.pk],
        )
    go(shop)
    undo = undo_of(job)
    assert taken == [BREAD]
    assert checkpoints(undo) == [("compensation", "milk", "failed"), BOTH[1]]
    assert (undo.status, undo.dead_letter.reason) == ("DEAD", "permanent")
