"""Children and awaited jobs by hand: re-attached, woken once, and what their ends mean."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_durable import (
    CancelJob,
    DuplicateJob,
    DurableError,
    JobCancelled,
    JobContext,
    JobFailed,
    OnDuplicate,
    PermanentFailure,
    workflow,
)
from django_durable.models import Await, Job
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


@pytest.fixture
def square() -> Any:
    """A job type that squares what is even; 13 kills and 15 cancels it."""

    @workflow(name="square", backoff=AT_ONCE)
    def square(context: JobContext, value: int) -> int:
        if value == 13:
            raise PermanentFailure("bad luck")
        if value == 15:
            raise CancelJob("not today")
        return value * value

    return square


def test_a_child_is_a_job_of_the_tree_and_its_result_is_the_calls(square: Any) -> None:
    @workflow
    def flow(context: JobContext) -> int:
        child = context.start("child", square, 4)
        assert child.created is not context.job.resumed
        assert (child.parent_id, child.root_id, child.depth) == (context.job.pk, context.job.pk, 1)
        value: int = child.result()
        return value

    job = flow.enqueue()
    (parked,) = go_one(flow, square)
    assert parked.status == "WAITING"
    assert parked.due_at is None
    go(flow, square)
    assert value_of(job) == 16
    assert checkpoints(job) == [("child", "child", "succeeded")]
    assert fresh(job).attempt == 1


def test_a_named_child_is_re_attached_after_a_crash(square: Any) -> None:
    seen: list[tuple[uuid.UUID, bool]] = []

    @workflow(backoff=AT_ONCE)
    def flow(context: JobContext) -> int:
        child = context.start("child", square, 4)
        seen.append((child.pk, child.created))
        if context.attempt == 1:
            raise FlakyError
        value: int = context.gather([child])[0]
        return value

    job = flow.enqueue()
    go(flow, square)
    assert value_of(job) == 16
    assert len({pk for pk, _created in seen}) == 1
    assert [created for _pk, created in seen] == [True] + [False] * (len(seen) - 1)
    assert Job.objects.filter(parent=job).count() == 1


def test_options_of_using_are_the_childs(square: Any) -> None:
    @workflow
    def flow(context: JobContext) -> int:
        calling = square.using(priority=7, metadata={"a": "b"}, queue_name="other")
        child = context.start("child", calling, 2)
        assert (child.priority, child.metadata, child.queue_name) == (7, {"a": "b"}, "other")
        value: int = context.call("call", square.using(priority=3), 3)
        return value

    job = flow.enqueue()
    go(flow, square)
    assert value_of(job) == 9


def test_results_come_in_the_order_of_the_jobs_whatever_their_ends_order(square: Any) -> None:
    @workflow
    def flow(context: JobContext) -> list[int]:
        children = [
            context.start(f"child-{number}", square.using(priority=number), number)
            for number in range(5)
        ]
        return context.gather([*children, children[1]])

    job = flow.enqueue()
    go(flow, square)
    assert value_of(job) == [0, 1, 4, 9, 16, 1]


def test_start_many_makes_and_re_attaches_in_a_handful_of_statements(square: Any) -> None:
    counts: list[int] = []

    @workflow(backoff=AT_ONCE)
    def flow(context: JobContext) -> int:
        with CaptureQueriesContext(connection) as queries:
            children = context.start_many("part", square, [((2,), {})] * 500)
        counts.append(len(queries))
        if context.attempt == 1:
            raise FlakyError
        return sum(context.gather(children))

    job = flow.enqueue()
    go(flow, square)
    assert value_of(job) == 2000
    assert Job.objects.filter(parent=job).count() == 500
    assert checkpoints(job)[:2] == [
        ("child", "part-0", "succeeded"),
        ("child", "part-1", "succeeded"),
    ]
    # BEGIN and the like are counted as well.
    assert counts[0] <= 10
    assert max(counts[1:]) <= 2


def test_start_many_takes_calls_as_enqueue_many_does(square: Any) -> None:
    @workflow
    def flow(context: JobContext) -> list[int]:
        calls = [((1,),), ((), {"value": 2}), ((3,), {}, {"idempotency_key": "three"})]
        children = context.start_many("part", square, calls)
        assert children[2].idempotency_key == "three"
        return context.gather(children)

    job = flow.enqueue()
    go(flow, square)
    assert value_of(job) == [1, 4, 9]


def test_of_a_call_that_is_wrong_nothing_is_stored(square: Any) -> None:
    @workflow
    def flow(context: JobContext) -> None:
        with pytest.raises(TypeError):
            context.start_many("part", square, [((1,), {}), ((), {"wrong": 2})])

    job = flow.enqueue()
    go(flow, square)
    assert value_of(job) is None
    assert Job.objects.count() == 1
    assert checkpoints(job) == []


def test_a_parent_of_many_is_woken_once_when_all_have_ended(square: Any) -> None:
    runs: list[int] = []

    @workflow
    def flow(context: JobContext) -> int:
        runs.append(1)
        return sum(context.gather(context.start_many("part", square, [((2,), {})] * 500)))

    job = flow.enqueue()
    go_one(flow)
    for _ in range(5):
        assert fresh(job).status == "WAITING"
        assert len(Runner(square).run(slots=100)) == 100
    assert fresh(job).status == "READY"
    go(flow)
    assert value_of(job) == 2000
    assert len(runs) == 2


def test_a_dead_child_raises_with_its_job_and_kills_the_parent_unless_caught(square: Any) -> None:
    @workflow(backoff=AT_ONCE)
    def flow(context: JobContext, catches: bool) -> str:
        try:
            context.call("child", square, 13)
        except JobFailed as error:
            if not catches:
                raise
            found = [error.job and error.job.parent_id == context.job.pk, bool(error.dead_letter)]
            return f"{error.error_class} {error.message} {found}"
        return "no error"

    caught, uncaught = flow.enqueue(True), flow.enqueue(False)
    go(flow, square)
    assert value_of(caught) == "PermanentFailure bad luck [True, True]"
    letter = fresh(uncaught).dead_letter
    assert letter is not None
    assert (letter.reason, letter.error_class) == ("permanent", "JobFailed")
    assert "bad luck" in letter.message
    assert letter.attempt_count == 1


def test_a_handler_around_result_catches_a_dead_child_and_not_the_park(square: Any) -> None:
    caught: list[str] = []

    @workflow
    def flow(context: JobContext) -> str:
        child = context.start("child", square, 13)
        try:
            child.result()
        except Exception as error:  # noqa: BLE001 - this is the case
            caught.append(type(error).__name__)
        return "on"

    job = flow.enqueue()
    (parked,) = go_one(flow)
    assert (parked.status, caught) == ("WAITING", [])
    go(square)
    go(flow)
    assert value_of(job) == "on"
    assert caught == ["JobFailed"]


def test_a_cancelled_child_raises_with_its_job_and_is_permanent_too(square: Any) -> None:
    @workflow(backoff=AT_ONCE)
    def flow(context: JobContext, catches: bool) -> str:
        try:
            context.call("child", square, 15)
        except JobCancelled as error:
            if not catches:
                raise
            return f"{error.reason} {error.job and error.job.parent_id == context.job.pk}"
        return "no error"

    caught, uncaught = flow.enqueue(True), flow.enqueue(False)
    go(flow, square)
    assert value_of(caught) == "not today True"
    letter = fresh(uncaught).dead_letter
    assert letter is not None
    assert (letter.reason, letter.error_class) == ("permanent", "JobCancelled")


def test_return_exceptions_puts_errors_in_their_places(square: Any) -> None:
    @workflow
    def flow(context: JobContext) -> list[str]:
        calls = [((value,), {}) for value in (2, 13, 15)]
        answers = context.gather(context.start_many("part", square, calls), True)
        return [getattr(answer, "__class__", type(answer)).__name__ for answer in answers]

    job = flow.enqueue()
    go(flow, square)
    assert value_of(job) == ["int", "JobFailed", "JobCancelled"]


def test_the_first_error_is_raised_only_when_all_have_ended(square: Any) -> None:
    @workflow
    def flow(context: JobContext) -> str:
        calls = [((13,), {}), ((2,), {}, {"run_after": HOUR})]
        children = context.start_many("part", square, calls)
        try:
            context.gather(children)
        except JobFailed:
            return fresh(children[1]).status
        return "no error"

    job = flow.enqueue()
    go(flow, square)
    assert fresh(job).status == "WAITING"
    Job.objects.get(parent=job, status="READY").run_now()
    go(flow, square)
    assert value_of(job) == "SUCCESSFUL"


def test_a_gather_of_nothing_or_of_what_has_ended_does_not_park(square: Any) -> None:
    ended = square.enqueue(3)
    go(square)

    @workflow
    def flow(context: JobContext) -> list[Any]:
        return [context.gather([]), context.gather([Job.objects.get(pk=ended.pk)])]

    job = flow.enqueue()
    assert len(go(flow)) == 1
    assert value_of(job) == [[], [9]]


def test_any_job_can_be_awaited_by_its_id_and_two_waiters_both_wake(square: Any) -> None:
    awaited = square.using(idempotency_key="shared").enqueue(5)

    @workflow
    def flow(context: JobContext) -> int:
        value: int = Job.objects.by_key(square, "shared").get().result()
        return value

    jobs = [flow.enqueue(), flow.enqueue()]
    go(flow)
    assert [fresh(job).status for job in jobs] == ["WAITING", "WAITING"]
    assert Await.objects.filter(awaited=awaited).count() == 2
    go(square)
    assert [fresh(job).status for job in jobs] == ["READY", "READY"]
    go(flow)
    assert [value_of(job) for job in jobs] == [25, 25]


def test_a_woken_parent_is_back_in_its_old_place(square: Any) -> None:
    @workflow
    def flow(context: JobContext) -> None:
        context.call("child", square, 2)

    first = flow.enqueue()
    go_one(flow)
    second = flow.enqueue()
    go(square)
    assert [ran.pk for ran in go_one(flow)] == [first.pk, second.pk]


def test_awaiting_oneself_or_an_ancestor_is_refused() -> None:
    errors: list[str] = []

    @workflow
    def child(context: JobContext, above: uuid.UUID) -> None:
        with pytest.raises(DurableError) as caught:
            Job.objects.get(pk=above).result()
        errors.append(str(caught.value))
        with pytest.raises(DurableError):
            context.gather([context.job])

    @workflow
    def middle(context: JobContext, above: uuid.UUID) -> None:
        context.call("child", child, above)

    @workflow
    def flow(context: JobContext) -> None:
        context.call("middle", middle, context.job.pk)

    job = flow.enqueue()
    go(flow, middle, child)
    assert value_of(job) is None
    assert str(job.pk) in errors[0]


def test_a_job_that_is_gone_cannot_be_awaited(square: Any) -> None:
    gone = square.enqueue(2)
    go(square)
    pk = gone.pk
    gone.delete()

    @workflow(backoff=AT_ONCE)
    def flow(context: JobContext) -> None:
        with pytest.raises(Job.DoesNotExist):
            context.gather([Job(id=pk)])

    job = flow.enqueue()
    go(flow)
    assert value_of(job) is None


def test_depth_ends_at_its_limit_and_nothing_is_stored_below(settings: Any) -> None:
    settings.DURABLE_MAX_DEPTH = 4

    @workflow(backoff=AT_ONCE)
    def deeper(context: JobContext) -> int:
        child = context.start("child", deeper)
        value: int = child.result()
        return value

    job = deeper.enqueue()
    go(deeper)
    assert sorted(job.tree().values_list("depth", flat=True)) == [0, 1, 2, 3, 4]
    deepest = job.tree().get(depth=4)
    assert deepest.dead_letter.error_class == "DepthExceeded"
    assert deepest.dead_letter.attempt_count == 1
    assert not deepest.steps.exists()
    assert fresh(job).dead_letter.error_class == "JobFailed"


def test_thirty_two_levels_are_allowed() -> None:
    @workflow
    def deeper(context: JobContext, left: int) -> int:
        return context.call("child", deeper, left - 1) + 1 if left else 0

    job = deeper.enqueue(32)
    go(deeper)
    assert value_of(job) == 32


def test_a_plain_enqueue_inside_a_workflow_is_a_root_of_its_own(square: Any) -> None:
    @workflow
    def flow(context: JobContext) -> uuid.UUID:
        value: uuid.UUID = square.enqueue(2).pk
        return value

    job = flow.enqueue()
    go(flow)
    made = Job.objects.get(pk=value_of(job))
    assert (made.parent, made.root_id, made.depth) == (None, made.pk, 0)
    assert checkpoints(job) == []


def test_one_slot_finishes_a_tree_of_three_levels(square: Any) -> None:
    @workflow
    def branch(context: JobContext, number: int) -> int:
        calls = [((value,), {}) for value in range(number)]
        return sum(context.gather(context.start_many("leaf", square, calls)))

    @workflow
    def flow(context: JobContext) -> int:
        return sum(context.gather([context.start(f"b-{n}", branch, n) for n in range(4)]))

    job = flow.enqueue()
    while Runner(flow, branch, square).run(slots=1):
        pass
    assert value_of(job) == 0 + 0 + 1 + 5


# Children with a key that another job has.


def keyed(square: Any, mode: OnDuplicate) -> Any:
    @workflow(backoff=AT_ONCE)
    def flow(context: JobContext) -> tuple[uuid.UUID, bool, Any]:
        call = square.using(idempotency_key="key", on_duplicate=mode)
        child = context.start("child", call, 3)
        return child.pk, child.created, child.result()

    return flow


@pytest.mark.parametrize(
    ("mode", "ended", "made"),
    [
        (OnDuplicate.RETURN_EXISTING, False, False),
        (OnDuplicate.RETURN_EXISTING, True, False),
        (OnDuplicate.RETURN_LIVE, False, False),
        (OnDuplicate.RETURN_LIVE, True, True),
        (OnDuplicate.ALLOW_REUSE, False, True),
        (OnDuplicate.ALLOW_REUSE, True, True),
        (OnDuplicate.ALLOW_REUSE_ON_FAILURE, "dead", True),
        (OnDuplicate.REPLACE, False, False),
        (OnDuplicate.REPLACE, True, True),
    ],
)
def test_a_childs_key_that_is_taken_is_decided_as_in_an_enqueue(
    square: Any, mode: OnDuplicate, ended: Any, made: bool
) -> None:
    holder = square.using(idempotency_key="key").enqueue(13 if ended == "dead" else 2)
    if ended:
        go(square)
    flow = keyed(square, mode)
    job = flow.enqueue()
    go(flow)
    go(flow, square)
    pk, _created, value = value_of(job)
    assert (pk != holder.pk) is made
    assert value == (9 if made or mode is OnDuplicate.REPLACE else 4)
    child = Job.objects.get(pk=pk)
    assert child.idempotency_key == "key"
    assert child.parent_id == (job.pk if made else None)
    assert checkpoints(job) == [("child", "child", "succeeded")]


@pytest.mark.parametrize("mode", [OnDuplicate.NO_REUSE, OnDuplicate.ALLOW_REUSE_ON_FAILURE])
def test_a_childs_key_that_must_not_be_used_again_is_a_duplicate_job(
    square: Any, mode: OnDuplicate
) -> None:
    holder = square.using(idempotency_key="key").enqueue(2)

    @workflow
    def flow(context: JobContext) -> None:
        calls = [((1,), {}), ((3,), {}, {"idempotency_key": "key", "on_duplicate": mode})]
        with pytest.raises(DuplicateJob) as caught:
            context.start_many("part", square, calls)
        assert caught.value.job == holder

    job = flow.enqueue()
    go(flow)
    assert value_of(job) is None
    # All or nothing.
    assert not Job.objects.filter(parent=job).exists()
    assert checkpoints(job) == []


def test_two_children_with_one_key_are_one_job(square: Any) -> None:
    @workflow
    def flow(context: JobContext) -> int:
        calls = [((3,), {}, {"idempotency_key": "key"})] * 2
        one, other = context.start_many("part", square, calls)
        assert one.pk == other.pk
        return sum(context.gather([one, other]))

    job = flow.enqueue()
    go(flow, square)
    assert value_of(job) == 18
    assert Job.objects.filter(parent=job).count() == 1


# Cancelling.


def test_a_cancel_of_a_parked_workflow_takes_its_children_along(square: Any) -> None:
    @workflow
    def flow(context: JobContext) -> None:
        context.call("child", square, 2)

    job = flow.enqueue()
    go_one(flow)
    assert job.cancel("enough") == "cancelled"
    assert set(job.tree().values_list("status", "cancel_reason")) == {("CANCELLED", "enough")}
    assert go(flow, square) == []
    assert not Await.objects.exists()


def test_a_workflow_learns_of_its_cancel_at_the_next_verb_and_what_it_earned_stays() -> None:
    reached: list[str] = []

    @workflow
    def flow(context: JobContext) -> None:
        context.step("first", Job.objects.get(pk=context.job.pk).cancel, "enough")
        reached.append("between")
        context.step("second", reached.append, "second")

    job = flow.enqueue()
    go(flow)
    assert (fresh(job).status, fresh(job).cancel_reason) == ("CANCELLED", "enough")
    assert reached == ["between"]
    assert checkpoints(job) == [("step", "first", "succeeded")]


@pytest.mark.parametrize("verb", ["start", "sleep", "wait_for_signal", "atomic_step", "now"])
def test_every_verb_tells_a_running_workflow_of_its_cancel(square: Any, verb: str) -> None:
    reached: list[str] = []

    @workflow
    def flow(context: JobContext) -> None:
        Job.objects.get(pk=context.job.pk).cancel()
        {
            "start": lambda: context.start("x", square, 2),
            "sleep": lambda: context.sleep("x", HOUR),
            "wait_for_signal": lambda: context.wait_for_signal("x"),
            # These keep what they have earned, and the next verb ends the run.
            "atomic_step": lambda: context.atomic_step("x", int),
            "now": lambda: context.now("x"),
        }[verb]()
        context.step("next", reached.append, "next")

    job = flow.enqueue()
    go(flow)
    assert fresh(job).status == "CANCELLED"
    assert reached == []
    assert not Job.objects.filter(parent=job).exists()


def test_a_workflow_that_returns_after_the_request_is_successful() -> None:
    @workflow
    def flow(context: JobContext) -> str:
        Job.objects.get(pk=context.job.pk).cancel()
        return "made it"

    job = flow.enqueue()
    go(flow)
    assert value_of(job) == "made it"


def test_a_cancelled_awaited_job_wakes_its_waiter(square: Any) -> None:
    awaited = square.enqueue(2)

    @workflow
    def flow(context: JobContext) -> str:
        try:
            Job.objects.get(pk=awaited.pk).result()
        except JobCancelled as error:
            return error.reason
        return "no error"

    job = flow.enqueue()
    go(flow)
    awaited.cancel("gone")
    go(flow)
    assert value_of(job) == "gone"


def test_a_child_that_outlives_its_parents_timeout_does_not_harm_it() -> None:
    @workflow(name="slow")
    def slow(context: JobContext) -> int:
        return 1

    @workflow(timeout=timedelta(seconds=2))
    def flow(context: JobContext) -> Any:
        first = context.deadline
        value = context.call("child", slow)
        return value, first is not None

    job = flow.enqueue()
    go_one(flow)
    go(slow)
    go(flow)
    assert value_of(job) == (1, True)
