"""Async workflows by hand: the twins of the verbs mean the same."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.contrib.auth.models import Group

from django_durable import (
    Backoff,
    CancelRequested,
    DurableError,
    JobContext,
    JobTimeout,
    SignalTimeout,
    execution,
    step,
    underway,
    workflow,
)
from django_durable.models import Job
from django_durable.outcomes import Abandoned
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


async def double(value: int) -> int:
    """Return twice the value."""
    await asyncio.sleep(0)
    return 2 * value


def test_steps_are_recorded_and_not_called_again() -> None:
    calls: list[str] = []

    @workflow(backoff=AT_ONCE)
    async def atomic(context: JobContext) -> int:
        def write() -> int:
            Group.objects.create(name="atomic")
            return Group.objects.count()

        count: int = await context.aatomic_step("write", write)
        await context.astep("sync", calls.append, "sync")
        if context.attempt == 1:
            raise FlakyError
        return count

    job = atomic.enqueue()
    go(atomic)
    assert value_of(job) == 1
    assert calls == ["sync"]
    assert Group.objects.count() == 1


def test_several_steps_run_at_once() -> None:
    together: list[int] = []

    @workflow(backoff=AT_ONCE)
    async def flow(context: JobContext) -> list[int]:
        barrier = asyncio.Event()

        async def meet(number: int) -> int:
            together.append(number)
            if len(together) == 5:
                barrier.set()
            await asyncio.wait_for(barrier.wait(), 10)
            return number

        values = await asyncio.gather(*(context.astep(f"s-{n}", meet, n) for n in range(5)))
        if context.attempt == 1:
            raise FlakyError
        return list(values)

    job = flow.enqueue()
    go(flow)
    assert value_of(job) == [0, 1, 2, 3, 4]
    assert sorted(together) == [0, 1, 2, 3, 4]
    assert job.steps.count() == 5


def test_every_wait_parks_and_goes_on(advance: Any) -> None:
    @workflow
    async def child(context: JobContext, value: int) -> int:
        return await double(value)

    @workflow
    async def flow(context: JobContext) -> list[Any]:
        await context.asleep("nap", HOUR)
        word = await context.await_for_signal("word")
        started = await context.astart("child", child, 1)
        many = await context.astart_many("many", child, [((2,), {}), ((3,), {})])
        results = [await started.aresult(), await context.agather(many)]
        return [word, *results, await context.acall("call", child, 4), await context.apatched("p")]

    job = flow.enqueue()
    go(flow, child)
    assert fresh(job).status == "WAITING"
    advance(HOUR)
    go(flow, child)
    assert fresh(job).status == "WAITING"
    job.signal("word", "given")
    go(flow, child)
    assert value_of(job) == ["given", 2, [4, 6], 8, True]
    assert fresh(job).attempt == 1


def test_a_short_sleep_is_slept_on_the_loop() -> None:
    @workflow
    async def flow(context: JobContext) -> bool:
        other = asyncio.get_running_loop().create_task(asyncio.sleep(0, True))
        await context.asleep("nap", timedelta(milliseconds=30))
        return other.done()

    job = flow.enqueue()
    assert len(go(flow)) == 1
    assert value_of(job) is True


def test_a_handler_around_a_wait_does_not_keep_it_from_parking() -> None:
    @workflow
    async def flow(context: JobContext) -> str:
        try:
            await context.asleep("nap", HOUR)
        except Exception:  # noqa: BLE001 - this is the case
            return "handled"
        return "awake"

    flow.enqueue()
    (parked,) = go(flow)
    assert parked.status == "WAITING"


def test_a_timeout_of_a_signal_is_raised(advance: Any) -> None:
    @workflow
    async def flow(context: JobContext) -> str:
        try:
            await context.await_for_signal("word", timeout=HOUR)
        except SignalTimeout:
            return "timeout"
        return "word"

    job = flow.enqueue()
    go(flow)
    advance(HOUR)
    go(flow)
    assert value_of(job) == "timeout"


@pytest.mark.parametrize("kind", ["async", "plain", "atomic"])
def test_a_steps_own_timeout_cancels_it_and_the_policy_tries_again(kind: str) -> None:
    calls: list[str] = []

    @step(timeout=timedelta(milliseconds=20), max_attempts=2, backoff=AT_ONCE)
    async def slow() -> None:
        calls.append("call")
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            calls.append("cancelled")
            raise

    @workflow(retry_on=ConnectionError)
    async def async_flow(context: JobContext) -> str:
        try:
            await context.astep("slow", slow)
        except JobTimeout as error:
            return str(error)
        return "no error"

    @workflow(retry_on=ConnectionError)
    def flow(context: JobContext) -> str:
        verb = context.step if kind == "plain" else context.atomic_step
        try:
            verb("slow", slow)
        except JobTimeout as error:
            return str(error)
        return "no error"

    job = (async_flow if kind == "async" else flow).enqueue()
    go(flow, async_flow)
    assert "0.02 s" in value_of(job)
    assert calls == ["call", "cancelled"] * 2
    assert checkpoints(job) == [("step", "slow", "failed")]


def test_a_long_wait_of_a_policy_is_parked(advance: Any) -> None:
    calls: list[int] = []

    @step(max_attempts=2, backoff=Backoff(initial=HOUR, jitter=0.0))
    async def flaky() -> str:
        calls.append(1)
        if len(calls) == 1:
            raise FlakyError
        return "at last"

    @workflow(max_attempts=1)
    async def flow(context: JobContext) -> str:
        value: str = await context.astep("flaky", flaky)
        return value

    job = flow.enqueue()
    (parked,) = go(flow)
    assert parked.status == "WAITING"
    advance(HOUR)
    go(flow)
    assert value_of(job) == "at last"


def test_a_cancellation_of_the_task_is_never_recorded_as_the_steps_error() -> None:
    @workflow(backoff=AT_ONCE, retry_on=ConnectionError)
    async def flow(context: JobContext) -> str:
        async def cancelled() -> None:
            raise asyncio.CancelledError

        try:
            await context.astep("cancelled", cancelled)
        except asyncio.CancelledError:
            return "cancelled"
        return "no error"

    job = flow.enqueue()
    go(flow)
    assert value_of(job) == "cancelled"
    assert checkpoints(job) == []


def test_a_steps_write_is_fenced_and_the_loser_stops() -> None:
    reached: list[str] = []

    @workflow
    async def flow(context: JobContext) -> None:
        await context.astep("stolen", steal, context.job.pk)
        reached.append("after")

    job = flow.enqueue()
    runner = Runner(flow)
    assert isinstance(runner.execute(runner.take()), Abandoned)
    assert reached == []
    assert checkpoints(job) == []


def test_a_cancel_is_learned_at_the_next_verb() -> None:
    seen: list[str] = []

    @workflow
    async def flow(context: JobContext) -> None:
        await (await Job.objects.aget(pk=context.job.pk)).acancel("enough")
        try:
            await context.asleep("nap", HOUR)
        except CancelRequested:
            seen.append("cancelled")
            raise

    job = flow.enqueue()
    go(flow)
    assert (fresh(job).status, fresh(job).cancel_reason) == ("CANCELLED", "enough")
    assert seen == ["cancelled"]


def test_verbs_inside_an_async_step_are_refused() -> None:
    @workflow
    async def flow(context: JobContext) -> None:
        async def inside() -> None:
            with pytest.raises(DurableError):
                await context.asleep("nap", HOUR)
            with pytest.raises(DurableError):
                await sync_to_async(context.step)("inner", int)

        await context.astep("outer", inside)

    job = flow.enqueue()
    go(flow)
    assert value_of(job) is None


@pytest.mark.parametrize("verb", ["astep", "aatomic_step"])
def test_a_step_that_raises_stop_iteration_fails_rather_than_never_to_return(verb: str) -> None:
    @workflow(max_attempts=1)
    async def flow(context: JobContext) -> None:
        await asyncio.wait_for(getattr(context, verb)("first", lambda: next(iter(()))), 5)

    job = flow.enqueue()
    go(flow)
    assert fresh(job).attempts.get().error_class == "RuntimeError"


def test_a_plain_workflow_may_use_async_functions_as_steps() -> None:
    @workflow
    def flow(context: JobContext) -> list[int]:
        return [context.step("one", double, 1), context.atomic_step("two", double, 2)]

    job = flow.enqueue()
    go(flow)
    assert value_of(job) == [2, 4]


def test_an_async_workflow_may_use_the_plain_verbs_from_a_thread() -> None:
    @workflow
    async def flow(context: JobContext) -> int:
        def plain() -> int:
            context.step("one", int)
            return int(context.step("two", int, 2))

        return await sync_to_async(plain)()

    job = flow.enqueue()
    assert [ran.status for ran in go_one(flow)] == ["SUCCESSFUL"]
    assert value_of(job) == 2


def insisting(tries: list[str], name: str, wait: timedelta) -> Any:
    """Return a function that fails at first, and is tried again after the wait."""

    @step(max_attempts=2, backoff=Backoff(initial=wait, maximum=wait, jitter=0.0))
    async def insist() -> str:
        tries.append(name)
        if tries.count(name) == 1:
            raise FlakyError
        return name

    return insist


@pytest.mark.parametrize("wait", ["signal", "sleep", "child"])
def test_the_next_try_of_a_step_is_on_time_beside_a_longer_wait(advance: Any, wait: str) -> None:
    tries: list[str] = []

    @workflow(queue_name="elsewhere")
    async def child(context: JobContext) -> str:
        return "grown"

    @workflow
    async def flow(context: JobContext) -> list[str]:
        async def other() -> str:
            if wait == "signal":
                return str(await context.await_for_signal("word"))
            if wait == "sleep":
                await context.asleep("nap", 3 * HOUR)
                return "slept"
            return str(await context.acall("child", child))

        insist = insisting(tries, "one", HOUR)
        return list(await asyncio.gather(context.astep("insist", insist), other()))

    job = flow.enqueue()
    go(flow)
    parked = fresh(job)
    assert (parked.status, tries) == ("WAITING", ["one"])
    assert "retrying step 'insist'" in parked.blocked_on
    advance(HOUR)
    go(flow)
    assert (fresh(job).status, tries) == ("WAITING", ["one", "one"])
    assert "retrying" not in fresh(job).blocked_on
    # What it waits for besides still wakes it.
    answer = {"signal": "given", "sleep": "slept", "child": "grown"}[wait]
    if wait == "signal":
        job.signal("word", answer)
    elif wait == "sleep":
        advance(2 * HOUR)
    go(flow, child)
    assert value_of(job) == ["one", answer]
    assert (fresh(job).attempt, tries) == (1, ["one", "one"])


@pytest.mark.parametrize("wait", ["signal", "sleep", "child"])
def test_what_a_run_waits_for_wakes_it_before_the_next_try_of_a_step(
    advance: Any, wait: str
) -> None:
    tries: list[str] = []
    done: list[str] = []

    @workflow(queue_name="elsewhere")
    async def child(context: JobContext) -> str:
        return "grown"

    @workflow
    async def flow(context: JobContext) -> list[str]:
        async def other() -> str:
            if wait == "signal":
                await context.await_for_signal("word")
            elif wait == "sleep":
                await context.asleep("nap", HOUR)
            else:
                await context.acall("child", child)
            await context.astep("after", lambda: done.append("after"))
            return wait

        insist = insisting(tries, "one", 3 * HOUR)
        return list(await asyncio.gather(context.astep("insist", insist), other()))

    job = flow.enqueue()
    go(flow)
    if wait == "signal":
        job.signal("word")
    advance(HOUR)
    go(flow, child)
    assert (fresh(job).status, tries, done) == ("WAITING", ["one"], ["after"])
    advance(2 * HOUR)
    go(flow)
    assert value_of(job) == ["one", wait]
    assert (fresh(job).attempt, tries, done) == (1, ["one", "one"], ["after"])


@pytest.mark.parametrize("first", ["short", "long"])
def test_of_two_steps_that_wait_for_their_next_try_the_first_one_due_wakes_the_run(
    advance: Any, first: str
) -> None:
    tries: list[str] = []

    @workflow
    async def flow(context: JobContext) -> list[str]:
        waits = {"short": HOUR, "long": 3 * HOUR}
        if first == "long":
            waits = dict(reversed(waits.items()))
        steps = [context.astep(name, insisting(tries, name, wait)) for name, wait in waits.items()]
        return sorted(await asyncio.gather(*steps))

    job = flow.enqueue()
    go(flow)
    advance(HOUR)
    go(flow)
    assert (fresh(job).status, sorted(tries)) == ("WAITING", ["long", "short", "short"])
    advance(2 * HOUR)
    go(flow)
    assert value_of(job) == ["long", "short"]
    assert (fresh(job).attempt, len(tries)) == (1, 4)


def test_the_logger_may_come_before_the_first_verb(caplog: pytest.LogCaptureFixture) -> None:
    @workflow(backoff=AT_ONCE)
    async def flow(context: JobContext) -> int:
        context.logger.warning("begin %d", context.attempt)
        value: int = await context.astep("double", double, 2)
        if context.attempt == 1:
            raise FlakyError
        context.logger.warning("end %d", context.attempt)
        return value

    made = flow.enqueue()
    go(flow)

    assert value_of(made) == 4
    # The second run replays the first as it begins.
    assert [record.getMessage() for record in caplog.records] == ["begin 1", "end 2"]


@pytest.mark.parametrize("order", ["sleep first", "wait first"])
@pytest.mark.parametrize("wait", ["signal", "child", "sleep"])
def test_a_sleep_beside_another_wait_is_on_time(advance: Any, wait: str, order: str) -> None:
    done: list[str] = []

    @workflow(queue_name="elsewhere")
    async def child(context: JobContext) -> str:
        await context.asleep("growing", 3 * HOUR)
        return "grown"

    @workflow
    async def flow(context: JobContext) -> str:
        async def nap() -> None:
            await context.asleep("nap", HOUR)
            await context.astep("after", done.append, "after")

        async def other() -> None:
            if wait == "signal":
                await context.await_for_signal("word")
            elif wait == "child":
                await context.acall("child", child)
            else:
                await context.asleep("night", 3 * HOUR)
            done.append("other")

        branches = [nap(), other()]
        await asyncio.gather(*(branches if order == "sleep first" else reversed(branches)))
        return "end"

    job = flow.enqueue()
    go(flow, child)
    parked = fresh(job)
    assert (parked.status, done) == ("WAITING", [])
    assert "sleeping until" in parked.blocked_on
    assert ("waiting for" in parked.blocked_on) is (wait != "sleep")
    advance(HOUR)
    go(flow, child)
    assert (fresh(job).status, done) == ("WAITING", ["after"])
    assert ("sleeping until" in fresh(job).blocked_on) is (wait == "sleep")
    if wait == "signal":
        job.signal("word")
    advance(2 * HOUR)
    go(flow, child)
    assert (value_of(job), done, fresh(job).attempt) == ("end", ["after", "other"], 1)


@pytest.mark.parametrize("beside", ["sleep", "child"])
def test_a_signal_wakes_a_run_that_waits_for_something_else_besides(
    advance: Any, beside: str
) -> None:
    done: list[str] = []

    @workflow(queue_name="elsewhere")
    async def child(context: JobContext) -> None:
        await context.asleep("growing", HOUR)

    @workflow
    async def flow(context: JobContext) -> str:
        async def other() -> None:
            if beside == "sleep":
                await context.asleep("nap", HOUR)
            else:
                await context.acall("child", child)
            done.append("other")

        async def decide() -> None:
            word = await context.await_for_signal("word")
            await context.astep("decide", done.append, word)

        await asyncio.gather(other(), decide())
        return "end"

    job = flow.enqueue()
    go(flow, child)
    assert fresh(job).waits_for == "word"
    assert ("waiting for 1 job" in fresh(job).blocked_on) is (beside == "child")
    job.signal("word", "given")
    go(flow, child)
    assert (fresh(job).status, done) == ("WAITING", ["given"])
    advance(HOUR)
    go(flow, child)
    assert (value_of(job), done) == ("end", ["given", "other"])


def test_a_signal_that_comes_before_the_park_for_jobs_beside_it_is_not_missed() -> None:
    @workflow(queue_name="elsewhere")
    async def child(context: JobContext) -> None:
        await context.await_for_signal("grow")

    @workflow
    async def flow(context: JobContext) -> str:
        sent = asyncio.Event()
        real = context.try_park

        def try_park(*args: Any, **kwargs: Any) -> bool:
            if not sent.is_set():
                sent.set()
                context.job.signal("word", "given")
            return real(*args, **kwargs)

        context.try_park = try_park  # type: ignore[method-assign]
        branch = asyncio.create_task(context.acall("child", child))
        word = await context.await_for_signal("word")
        branch.cancel()
        return str(word)

    job = flow.enqueue()
    assert [ran.status for ran in go_one(flow)] == ["SUCCESSFUL"]
    assert value_of(job) == "given"


@pytest.mark.parametrize("order", ["short first", "long first"])
def test_of_two_waits_for_signals_each_keeps_its_timeout(advance: Any, order: str) -> None:
    done: list[str] = []

    @workflow
    async def flow(context: JobContext) -> str:
        async def wait(name: str, hours: int) -> None:
            with pytest.raises(SignalTimeout):
                await context.await_for_signal(name, timeout=hours * HOUR)
            await context.astep(f"after-{name}", done.append, name)

        waits = [wait("short", 1), wait("long", 3)]
        await asyncio.gather(*(waits if order == "short first" else reversed(waits)))
        return "end"

    job = flow.enqueue()
    go(flow)
    assert (fresh(job).status, done) == ("WAITING", [])
    advance(HOUR)
    go(flow)
    assert (fresh(job).status, done) == ("WAITING", ["short"])
    advance(2 * HOUR)
    go(flow)
    assert (value_of(job), done) == ("end", ["short", "long"])


def test_a_run_does_not_park_beside_a_short_sleep() -> None:
    @workflow
    async def flow(context: JobContext) -> None:
        async def nap() -> None:
            await context.asleep("nap", timedelta(seconds=0.2))
            await context.astep("after", int)

        await asyncio.gather(nap(), context.await_for_signal("word"))

    job = flow.enqueue()
    assert [ran.status for ran in go_one(flow)] == ["WAITING"]
    assert fresh(job).due_at is None
    assert ("step", "after", "succeeded") in checkpoints(job)


async def run_beside(flow: Any, job: Job, told: list[Any], look: Any) -> None:
    """Run a job on this loop, as a worker does, look at what it has left, and let go of that."""
    asyncio.get_running_loop().set_exception_handler(lambda _loop, said: told.append(said))
    context = await sync_to_async(lambda: context_of(Runner(flow).take()))()
    outcome = await execution.aexecute(context)
    look()
    await sync_to_async(Runner(flow).record)(outcome)


@pytest.mark.parametrize("how", ["return", "failure", "park"])
def test_what_a_run_leaves_behind_between_two_verbs_has_ended_with_it(how: str) -> None:
    left: list[asyncio.Task[None]] = []
    seen: list[str] = []
    told: list[Any] = []

    @workflow(max_attempts=1)
    async def flow(context: JobContext) -> None:
        is_between = asyncio.Event()

        async def branch() -> None:
            await context.astep("one", int)
            is_between.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                seen.append("cancelled")
                await asyncio.sleep(0.01)
                # It comes to no other verb, and nobody needs to hear of that.
                await context.astep("two", seen.append, "two")

        left.append(asyncio.create_task(branch()))
        await is_between.wait()
        if how == "failure":
            raise FlakyError
        if how == "park":
            await context.asleep("nap", HOUR)

    job = flow.enqueue()

    def look() -> None:
        assert left[0].done()
        assert seen == ["cancelled"]
        left.clear()
        gc.collect()

    async_to_sync(run_beside)(flow, job, told, look)
    assert fresh(job).status == {"return": "SUCCESSFUL", "failure": "DEAD", "park": "WAITING"}[how]
    assert told == []


def test_a_branch_that_stops_the_run_is_no_error_that_nobody_saw() -> None:
    told: list[Any] = []

    @workflow
    async def flow(context: JobContext) -> None:
        branch = asyncio.create_task(context.asleep("nap", HOUR))
        await asyncio.Event().wait()
        await branch

    job = flow.enqueue()
    async_to_sync(run_beside)(flow, job, told, gc.collect)
    assert (fresh(job).status, told) == ("WAITING", [])


def test_the_end_of_a_run_does_not_wait_for_ever_for_what_can_not_be_cancelled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(underway, "PATIENCE", 0.05)
    left: list[Any] = []

    @workflow
    async def flow(context: JobContext) -> None:
        is_between, may_end = asyncio.Event(), asyncio.Event()

        async def branch() -> None:
            await context.astep("one", int)
            is_between.set()
            while not may_end.is_set():
                with contextlib.suppress(asyncio.CancelledError):
                    await may_end.wait()

        left.extend([asyncio.create_task(branch()), may_end])
        await is_between.wait()

    job = flow.enqueue()

    def look() -> None:
        assert not left[0].done()
        left[1].set()

    async_to_sync(run_beside)(flow, job, [], look)
    assert fresh(job).status == "SUCCESSFUL"
