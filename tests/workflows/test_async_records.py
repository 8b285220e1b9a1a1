"""What a step of an async run has come to is recorded, whatever is cancelled meanwhile."""

from __future__ import annotations

import asyncio
import threading
import time
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from asgiref.sync import async_to_sync

from django_durable import JobContext, PermanentFailure, step, workflow
from django_durable.models import Job
from tests.workflows.driving import AT_ONCE, FlakyError, checkpoints, fresh, go, go_one, value_of

pytestmark = pytest.mark.django_db

# Only a broken run takes so long.
PATIENCE = 20.0
taken: list[str] = []


@pytest.fixture(autouse=True)
def _clean() -> None:
    taken.clear()


def take_back(value: str, *_: Any) -> None:
    """Take a charge back."""
    taken.append(value)


class Thread:
    """Be a plain function that holds the thread of a run until it is let go."""

    def __init__(self) -> None:
        self.has_begun = threading.Event()
        self._may_end = threading.Event()

    def hold(self) -> None:
        """Begin, and wait."""
        self.has_begun.set()
        assert self._may_end.wait(PATIENCE)

    async def is_held(self) -> None:
        """Wait until it has begun."""
        assert await asyncio.to_thread(self.has_begun.wait, PATIENCE)

    async def fail_beside(self, error: type[Exception]) -> None:
        """Fail while it is held, and let it go after that."""
        await self.is_held()
        await asyncio.sleep(0.1)
        self.let_go_soon()
        raise error

    def let_go_soon(self) -> None:
        """Let it end once what happens now has been heard of by all tasks."""
        asyncio.get_running_loop().call_later(0.2, self._may_end.set)


async def together(how: str, *branches: Any) -> None:
    """Await branches, of which one fails."""
    if how == "gather":
        await asyncio.gather(*branches)
        return
    async with asyncio.TaskGroup() as group:
        for branch in branches:
            group.create_task(branch)


def charging(calls: list[str], thread: Thread, kind: str) -> tuple[Any, Any]:
    """Return a step's function, and one for a step beside it, that keeps the thread busy.

    The one is plain, and runs in the thread; or async, and has ended when the other one goes on.
    """

    @step(compensate=take_back)
    def charge() -> str:
        calls.append("charge")
        thread.hold()
        return "paid"

    @step(compensate=take_back)
    async def acharge() -> str:
        calls.append("charge")
        await thread.is_held()
        return "paid"

    return (charge, int) if kind == "running" else (acharge, thread.hold)


@pytest.mark.parametrize("kind", ["running", "queued"])
@pytest.mark.parametrize("how", ["gather", "group"])
def test_a_step_is_recorded_beside_which_another_branch_fails(how: str, kind: str) -> None:
    calls: list[str] = []
    thread = Thread()
    charge, beside = charging(calls, thread, kind)

    @workflow(backoff=AT_ONCE)
    async def flow(context: JobContext) -> str:
        other = partial(thread.fail_beside, FlakyError)
        if context.attempt == 1:
            steps = [context.astep("beside", beside), context.astep("charge", charge)]
            await together(how, *steps, other())
        value: str = await context.astep("charge", charge)
        return value

    job = flow.enqueue()
    go(flow)
    assert value_of(job) == "paid"
    assert (fresh(job).attempt, calls) == (2, ["charge"])


@pytest.mark.parametrize("kind", ["running", "queued"])
def test_a_step_beside_which_the_job_dies_is_taken_back(kind: str) -> None:
    thread = Thread()
    charge, beside = charging([], thread, kind)

    @workflow
    async def flow(context: JobContext) -> None:
        other = partial(thread.fail_beside, PermanentFailure)
        steps = [context.astep("beside", beside), context.astep("charge", charge)]
        await together("group", *steps, other())

    job = flow.enqueue()
    go(flow)
    assert fresh(job).status == "DEAD"
    assert ("step", "charge", "succeeded") in checkpoints(job)
    assert taken == ["paid"]


def test_a_cancelled_step_whose_turn_has_not_come_is_not_called() -> None:
    calls: list[str] = []
    thread = Thread()

    @workflow(max_attempts=1)
    async def flow(context: JobContext) -> None:
        other = partial(thread.fail_beside, FlakyError)
        steps = [context.astep("hold", thread.hold), context.astep("no", calls.append, "no")]
        await together("group", *steps, other())

    job = flow.enqueue()
    go(flow)
    assert checkpoints(job) == [("step", "hold", "succeeded")]
    assert calls == []


@pytest.mark.parametrize("tries", [1, 3])
@pytest.mark.parametrize("kind", ["plain", "async", "atomic"])
def test_the_failure_of_a_cancelled_step_is_recorded(kind: str, tries: int) -> None:
    calls: list[int] = []
    thread = Thread()

    @step(max_attempts=tries, backoff=AT_ONCE)
    def fail() -> None:
        calls.append(1)
        thread.hold()
        raise FlakyError

    @step(max_attempts=tries, backoff=AT_ONCE)
    async def afail() -> None:
        calls.append(1)
        await thread.is_held()
        raise FlakyError

    @workflow(max_attempts=1)
    async def flow(context: JobContext) -> None:
        other = partial(thread.fail_beside, FlakyError)
        verb = context.aatomic_step if kind == "atomic" else context.astep
        steps = [verb("fail", afail if kind == "async" else fail)]
        if kind == "async":
            steps.insert(0, context.astep("hold", thread.hold))
        await together("group", *steps, other())

    job = flow.enqueue()
    go(flow)
    found = job.steps.get(name="fail")
    assert (found.status, found.tries) == ("failed" if tries == 1 else "pending", 1)
    assert calls == [1]


@pytest.mark.parametrize("verb", ["astep", "aatomic_step"])
def test_a_plain_step_is_recorded_for_which_the_time_is_over(verb: str) -> None:
    calls: list[str] = []
    thread = Thread()

    def slow() -> str:
        calls.append("slow")
        thread.hold()
        return "done"

    @workflow(backoff=AT_ONCE)
    async def flow(context: JobContext) -> str:
        step = asyncio.ensure_future(getattr(context, verb)("slow", slow))
        if context.attempt > 1:
            return str(await step)
        await thread.is_held()
        thread.let_go_soon()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(step, 0.01)
        # It is not inside the step any more.
        await context.astep("after", len, "ab")
        raise FlakyError

    job = flow.enqueue()
    go(flow)
    assert value_of(job) == "done"
    assert calls == ["slow"]
    assert [name for _, name, _ in checkpoints(job)] == ["slow", "after"]


def test_a_cancelled_step_does_not_park_the_run_for_its_next_try() -> None:
    thread = Thread()

    @step(max_attempts=2)
    def fail() -> None:
        thread.hold()
        raise FlakyError

    @workflow
    async def flow(context: JobContext) -> str:
        task = asyncio.current_task()
        assert task is not None

        async def cancel() -> None:
            await thread.is_held()
            thread.let_go_soon()
            assert task is not None
            task.cancel()

        canceller = asyncio.create_task(cancel())
        with pytest.raises(asyncio.CancelledError):
            await context.astep("fail", fail)
        task.uncancel()
        await canceller
        await context.astep("after", int)
        return "cancelled"

    job = flow.enqueue()
    go_one(flow)
    assert value_of(job) == "cancelled"
    assert checkpoints(job) == [("step", "fail", "pending"), ("step", "after", "succeeded")]


@pytest.mark.parametrize("verb", ["astep", "aatomic_step"])
def test_what_a_step_awaits_by_async_to_sync_is_cancelled_with_it(verb: str) -> None:
    thread = Thread()
    seen: list[str] = []

    async def forever() -> None:
        thread.has_begun.set()
        try:
            await asyncio.sleep(PATIENCE)
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    def wait() -> None:
        async_to_sync(forever)()

    @workflow(max_attempts=1)
    async def flow(context: JobContext) -> None:
        async def other() -> None:
            await thread.is_held()
            raise FlakyError

        await together("group", getattr(context, verb)("wait", wait), other())

    job = flow.enqueue()
    go(flow)
    assert (seen, checkpoints(job)) == (["cancelled"], [])


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_a_steps_own_timeout_does_not_count_the_wait_for_the_thread(kind: str) -> None:
    calls: list[str] = []
    limit = timedelta(seconds=1)

    @step(timeout=limit, max_attempts=3, backoff=AT_ONCE)
    def quick() -> None:
        calls.append("quick")

    @step(timeout=limit, max_attempts=3, backoff=AT_ONCE)
    async def aquick() -> None:
        calls.append("quick")

    @workflow
    async def flow(context: JobContext) -> None:
        await asyncio.gather(
            context.astep("hold", time.sleep, 1.2),
            context.astep("quick", quick if kind == "plain" else aquick),
        )

    job: Job = flow.enqueue()
    go(flow)
    assert fresh(job).status == "SUCCESSFUL"
    assert calls == ["quick"]
    found = job.steps.get(name="quick")
    assert found.finished_at is not None
    assert found.finished_at - found.started_at < limit
