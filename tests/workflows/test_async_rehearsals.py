"""`replay-check` of async workflows: what runs at the same time has no order to be kept."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.contrib.auth.models import Group
from django.db import connections

from django_durable import JobContext, PermanentFailure, job, workflow
from django_durable.jobtypes import registry
from django_durable.models import Job
from django_durable.rehearsal import check_histories, with_history
from tests.workflows.driving import AT_ONCE, HOUR, fresh, go

pytestmark = pytest.mark.django_db

calls: list[str] = []


async def slow(name: str, seconds: float = 0.0) -> str:
    """Take so long."""
    calls.append(name)
    await asyncio.sleep(seconds)
    return name


def shrink(name: str) -> str:
    """Take no time."""
    calls.append(name)
    return name


def deploy(func: Any) -> Any:
    """Make this the code of the job type `rehearsed.flow`."""
    old = registry.find("rehearsed.flow")
    if old is not None:
        registry.remove(old)
    return workflow(name="rehearsed.flow", max_attempts=2, backoff=AT_ONCE)(func)


def stored(func: Any, *others: Any, signal: str = "", status: str = "WAITING") -> Job:
    """Return a job that this code has made."""
    flow = deploy(func)
    made: Job = flow.enqueue()
    go(flow, *others)
    if signal:
        made.signal(signal)
        go(flow)
    assert fresh(made).status == status
    calls.clear()
    return made


def found() -> list[tuple[str, str]]:
    """Return what is found, and see that no step was called."""
    findings = check_histories(with_history(Job.objects.all())).findings
    assert calls == []
    return [(finding.problem, finding.step) for finding in findings]


@job(name="rehearsed.other")
def other() -> None:
    """Be awaited."""


async def gathered(context: JobContext) -> None:
    """Have the second of two steps end first."""
    await asyncio.gather(context.astep("a", slow, "a", 0.3), context.astep("b", slow, "b", 0.1))
    await context.asleep("night", HOUR)


async def grouped(context: JobContext) -> None:
    """Do so in a group, and something more behind each."""

    async def branch(name: str, seconds: float) -> None:
        await context.astep(name, slow, name, seconds)
        await context.astep(f"{name}2", slow, name)
        await context.anow(f"{name}3")

    async with asyncio.TaskGroup() as group:
        group.create_task(branch("a", 0.1))
        group.create_task(branch("b", 0.0))
    await context.asleep("night", HOUR)


async def beside_a_signal(context: JobContext) -> None:
    """Do two steps one after the other beside a wait."""

    async def branch() -> None:
        await context.astep("a", slow, "a")
        await context.astep("b", slow, "b")

    await asyncio.gather(context.await_for_signal("word"), branch())
    await context.asleep("night", HOUR)


async def waits_in_a_group(context: JobContext) -> None:
    """Wait for several things at the same time."""
    await context.astep("a", slow, "a")
    async with asyncio.TaskGroup() as group:
        group.create_task(context.await_for_signal("word"))
        group.create_task(context.astep("b", slow, "b"))
        group.create_task(context.asleep("night", HOUR))


async def waits_for_jobs(context: JobContext) -> None:
    """Wait for children beside a step."""
    children = await context.astart_many("kid", other, [((), {}), ((), {})])
    await asyncio.gather(context.agather(children), context.astep("a", slow, "a"))
    await context.asleep("night", HOUR)


async def first_of_two(context: JobContext) -> None:
    """Leave behind what has not ended."""
    tasks = [
        asyncio.create_task(context.astep("a", slow, "a")),
        asyncio.create_task(context.await_for_signal("word")),
    ]
    _done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    await context.astep("b", slow, "b")
    await context.asleep("night", HOUR)


async def impatient(context: JobContext) -> None:
    """Go on when a step takes too long."""
    try:
        async with asyncio.timeout(0.3):
            await context.astep("long", slow, "long", 20)
    except TimeoutError:
        await context.astep("late", slow, "late")
    await context.asleep("night", HOUR)


async def does_more_than_verbs(context: JobContext) -> None:
    """Read rows and wait between the verbs of a branch."""

    async def branch() -> None:
        await context.astep("a", slow, "a")
        await sync_to_async(Group.objects.count)()
        await asyncio.sleep(0.3)
        await context.astep("b", slow, "b")

    await asyncio.gather(context.await_for_signal("word"), branch())


async def logs_first(context: JobContext) -> None:
    """Log before any verb."""
    context.logger.info("begin")
    await context.astep("a", slow, "a")
    await context.asleep("night", HOUR)


async def plain_beside_a_child(context: JobContext) -> None:
    """Do a plain verb in the thread beside an async one."""
    plain = sync_to_async(context.step)
    await asyncio.gather(context.astart("kid", other), plain("a", shrink, "a"))
    await context.asleep("night", HOUR)


async def plain_beside_a_clock(context: JobContext) -> None:
    """Do a plain verb in the thread beside an async one."""
    await asyncio.gather(context.anow("when"), sync_to_async(context.step)("a", shrink, "a"))
    await context.asleep("night", HOUR)


async def plain_at_first_in_vain(context: JobContext) -> None:
    """Have a plain step succeed after what it was begun before."""

    async def branch() -> None:
        await context.astep("a", slow, "a")
        await sync_to_async(Group.objects.count)()
        await context.astep("b", slow, "b")
        await context.astart("kid", other)

    def fails_once() -> None:
        if context.attempt == 1:
            raise ConnectionError

    plain = sync_to_async(context.step)("c", fails_once)
    failed, _none = await asyncio.gather(plain, branch(), return_exceptions=True)
    if failed is not None:
        raise failed
    await context.asleep("night", HOUR)


async def plain_in_another_thread(context: JobContext) -> None:
    """Do plain verbs in a thread of their own beside async ones."""

    db = await sync_to_async(lambda: connections["default"])()
    has_ended = threading.Event()

    def plain() -> None:
        # That of the test, where all is.
        connections["default"] = db
        if not context.journal.is_replaying():
            has_ended.wait(10)
        context.step("c", shrink, "c")

    async def branch() -> None:
        await context.astep("a", slow, "a")
        await context.astep("b", slow, "b")
        has_ended.set()

    db.inc_thread_sharing()
    await asyncio.gather(asyncio.to_thread(plain), branch())
    db.dec_thread_sharing()
    await context.asleep("night", HOUR)


async def late_in_another_thread(context: JobContext) -> None:
    """Take long to come to a plain verb, in a thread of its own, and do more after it."""
    db = await sync_to_async(lambda: connections["default"])()
    is_done = asyncio.Event()

    def plain() -> None:
        connections["default"] = db
        time.sleep(0.5)
        context.step("b", shrink, "b")

    async def first() -> None:
        await asyncio.to_thread(plain)
        is_done.set()

    async def second() -> None:
        await context.astep("a", slow, "a")
        if not context.journal.is_replaying():
            await is_done.wait()
        await context.astep("c", slow, "c")

    db.inc_thread_sharing()
    await asyncio.gather(first(), second())
    db.dec_thread_sharing()
    await context.asleep("night", HOUR)


async def plain_waits(context: JobContext) -> None:
    """Do all kinds of plain verbs in the thread, two branches of them."""

    def first() -> None:
        children = context.start_many("kid", other, [((), {}), ((), {})])
        assert len(children) == 2
        context.step("a", shrink, "a")
        context.now("when")

    def second() -> None:
        context.atomic_step("b", shrink, "b")
        assert context.patched("new")

    await asyncio.gather(sync_to_async(first)(), sync_to_async(second)(), context.anow("moment"))
    await context.asleep("night", HOUR)


async def plain_on_the_loop(context: JobContext) -> None:
    """Ask for what is recorded without a thread."""
    await asyncio.gather(context.astep("a", slow, "a"), context.astep("b", slow, "b"))
    if context.journal.is_replaying():
        context.step("c", shrink, "c")
    else:
        await context.astep("c", slow, "c")
    await context.asleep("night", HOUR)


async def plain_left_behind(context: JobContext) -> None:
    """Leave a plain verb of a branch without an end."""

    async def branch() -> None:
        await context.astep("a", slow, "a")
        await context.astep("b", slow, "b")

    def fails() -> None:
        raise ConnectionError

    await asyncio.gather(sync_to_async(context.step)("c", fails), branch(), return_exceptions=True)
    await context.asleep("night", HOUR)


async def async_in_plain(context: JobContext) -> None:
    """Come to async verbs from plain functions, one after the other and side by side."""

    def first() -> None:
        async_to_sync(context.astep)("a", slow, "a")
        context.step("b", shrink, "b")
        async_to_sync(context.astart)("kid", other)

    async def both() -> None:
        await asyncio.gather(context.astep("c", slow, "c", 0.1), context.astep("d", slow, "d"))
        await sync_to_async(context.step)("e", shrink, "e")

    await asyncio.gather(sync_to_async(first)(), context.anow("when"))
    await asyncio.gather(sync_to_async(async_to_sync(both))(), context.anow("moment"))
    await sync_to_async(async_to_sync(context.asleep))("night", HOUR)


async def async_on_a_loop_of_its_own(context: JobContext) -> None:
    """Come to async verbs in another thread, which has no loop above it."""
    db = await sync_to_async(lambda: connections["default"])()

    def plain() -> None:
        # That of the test, where all is.
        connections["default"] = db
        async_to_sync(context.astep)("b", slow, "b")

    db.inc_thread_sharing()
    await context.astep("a", slow, "a")
    await asyncio.to_thread(plain)
    db.dec_thread_sharing()
    await context.asleep("night", HOUR)


async def async_in_plain_at_first_in_vain(context: JobContext) -> None:
    """Have an async step that a plain function waits for succeed after what came later."""

    def fails_once() -> None:
        if context.attempt == 1:
            raise ConnectionError

    def plain() -> None:
        async_to_sync(context.astep)("c", fails_once)

    async def branch() -> None:
        await context.astep("a", slow, "a")
        await sync_to_async(Group.objects.count)()
        await context.astep("b", slow, "b")

    failed, _none = await asyncio.gather(sync_to_async(plain)(), branch(), return_exceptions=True)
    if failed is not None:
        raise failed
    await context.asleep("night", HOUR)


async def waits_for_jobs_in_plain(context: JobContext) -> None:
    """Wait for a child from a plain function, beside a step."""
    child = await context.astart("kid", other)
    await sync_to_async(context.step)("a", shrink, "a")
    await sync_to_async(async_to_sync(context.agather))([child])
    await context.asleep("night", HOUR)


async def pauses_in_plain(context: JobContext) -> None:
    """Wait for no verb from a plain function, but on the loop."""
    if context.journal.is_replaying():
        await sync_to_async(async_to_sync(asyncio.sleep))(3600)
    await context.astep("a", slow, "a")
    await context.asleep("night", HOUR)


def plain_with_async(context: JobContext) -> None:
    """Come to async verbs from a plain workflow."""

    async def both() -> None:
        await asyncio.gather(context.astep("b", slow, "b", 0.1), context.astep("c", slow, "c"))

    context.step("a", shrink, "a")
    async_to_sync(both)()
    child = async_to_sync(context.astart)("kid", other)
    async_to_sync(context.agather)([child])
    context.sleep("night", HOUR)


UNCHANGED = [
    async_in_plain,
    async_on_a_loop_of_its_own,
    async_in_plain_at_first_in_vain,
    waits_for_jobs_in_plain,
    pauses_in_plain,
    plain_with_async,
    plain_beside_a_child,
    plain_beside_a_clock,
    plain_at_first_in_vain,
    plain_in_another_thread,
    late_in_another_thread,
    plain_waits,
    plain_on_the_loop,
    plain_left_behind,
    logs_first,
    gathered,
    grouped,
    beside_a_signal,
    waits_in_a_group,
    waits_for_jobs,
    first_of_two,
    impatient,
    does_more_than_verbs,
]


@pytest.mark.parametrize("func", UNCHANGED)
def test_the_code_that_made_a_history_has_no_findings(
    func: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    stored(func, other)
    # Such as "Task exception was never retrieved"; but what the code logs itself is right there.
    logged = [record for record in caplog.records if record.levelno >= logging.WARNING]
    caplog.clear()
    assert found() == []
    assert logged + caplog.records == []


def test_a_signal_that_came_after_what_went_on_beside_it() -> None:
    stored(beside_a_signal, signal="word")
    assert found() == []


def test_an_order_that_was_never_promised_may_change() -> None:
    stored(gathered)

    async def one_by_one(context: JobContext) -> None:
        await context.astep("a", slow, "a")
        await context.astep("b", slow, "b")
        await context.asleep("night", HOUR)

    deploy(one_by_one)
    assert found() == []


def test_steps_in_another_order_are_found() -> None:
    async def old(context: JobContext) -> None:
        await context.astep("a", slow, "a")
        await asyncio.gather(context.astep("b", slow, "b"), context.astep("c", slow, "c"))
        await context.asleep("night", HOUR)

    async def new(context: JobContext) -> None:
        await asyncio.gather(context.astep("b", slow, "b"), context.astep("c", slow, "c"))
        await context.astep("a", slow, "a")
        await context.asleep("night", HOUR)

    stored(old)
    deploy(new)
    assert found() == [("other_order", "a")]


async def plain_in_order(context: JobContext) -> None:
    """Do plain steps and async ones one after the other."""
    await context.astep("a", slow, "a")
    await sync_to_async(context.step)("b", shrink, "b")
    await asyncio.gather(context.astep("c", slow, "c"), context.astep("d", slow, "d"))
    await context.asleep("night", HOUR)


def test_plain_steps_in_another_order_are_found() -> None:
    async def new(context: JobContext) -> None:
        await sync_to_async(context.step)("b", shrink, "b")
        await context.astep("a", slow, "a")
        await asyncio.gather(context.astep("c", slow, "c"), context.astep("d", slow, "d"))
        await context.asleep("night", HOUR)

    stored(plain_in_order)
    deploy(new)
    assert found() == [("other_order", "a")]


def test_plain_steps_in_another_order_in_one_thread_are_found() -> None:
    def both(context: JobContext, first: str, second: str) -> None:
        context.step(first, shrink, first)
        context.step(second, shrink, second)

    async def old(context: JobContext) -> None:
        await asyncio.gather(sync_to_async(both)(context, "a", "b"), context.anow("when"))
        await context.asleep("night", HOUR)

    async def new(context: JobContext) -> None:
        await asyncio.gather(sync_to_async(both)(context, "b", "a"), context.anow("when"))
        await context.asleep("night", HOUR)

    stored(old)
    deploy(new)
    assert found() == [("other_order", "a")]


def test_a_plain_step_with_another_name_is_found() -> None:
    async def new(context: JobContext) -> None:
        await context.astep("a", slow, "a")
        await sync_to_async(context.step)("renamed", shrink, "b")
        await asyncio.gather(context.astep("c", slow, "c"), context.astep("d", slow, "d"))
        await context.asleep("night", HOUR)

    stored(plain_in_order)
    deploy(new)
    assert sorted(found()) == [("not_reached", name) for name in ("b", "c", "d")]


def test_a_plain_step_that_is_gone_is_found() -> None:
    async def new(context: JobContext) -> None:
        await context.astep("a", slow, "a")
        await asyncio.gather(context.astep("c", slow, "c"), context.astep("d", slow, "d"))
        await context.asleep("night", HOUR)

    stored(plain_in_order)
    deploy(new)
    assert found() == [("not_reached", "b")]


@pytest.mark.parametrize("is_plain", [False, True])
def test_an_async_step_in_plain_code_that_is_gone_is_found(*, is_plain: bool) -> None:
    def old(context: JobContext) -> None:
        async_to_sync(context.astep)("a", slow, "a")
        async_to_sync(context.astep)("b", slow, "b")
        async_to_sync(context.asleep)("night", HOUR)

    def new(context: JobContext) -> None:
        async_to_sync(context.astep)("renamed", slow, "a")
        async_to_sync(context.astep)("b", slow, "b")

    def made_async(plain: Callable[..., Any]) -> Callable[..., Any]:
        async def flow(context: JobContext) -> None:
            await sync_to_async(plain)(context)

        return plain if is_plain else flow

    stored(made_async(old), other)
    deploy(made_async(new))
    assert found() == [("not_reached", "a"), ("not_reached", "b")]


def test_a_write_in_a_thread_beside_verbs_is_found() -> None:
    async def new(context: JobContext) -> None:
        def plain() -> None:
            context.step("a", shrink, "a")
            Group.objects.create(name="of the rehearsal")

        await asyncio.gather(context.astart("kid", other), sync_to_async(plain)())

    stored(plain_beside_a_child)
    deploy(new)
    assert found() == [("write", "")]


def test_a_step_that_is_gone_from_a_branch_is_found() -> None:
    async def new(context: JobContext) -> None:
        await asyncio.gather(context.await_for_signal("word"), context.astep("b", slow, "b"))

    stored(beside_a_signal)
    deploy(new)
    assert found() == [("not_reached", "a")]


def test_a_checkpoint_of_another_kind_is_found() -> None:
    async def new(context: JobContext) -> None:
        await asyncio.gather(context.asleep("word", HOUR), context.astep("b", slow, "b"))

    stored(beside_a_signal)
    deploy(new)
    assert sorted(found()) == [("not_reached", "a"), ("other_kind", "word")]


def test_an_error_beside_a_wait_is_found() -> None:
    async def fails() -> None:
        raise ValueError("changed")

    async def new(context: JobContext) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(context.await_for_signal("word"))
            await context.astep("a", slow, "a")
            await context.astep("b", slow, "b")
            group.create_task(fails())

    stored(beside_a_signal)
    deploy(new)
    assert found() == [("error", "")]


def test_a_write_in_a_branch_is_found() -> None:
    async def new(context: JobContext) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(context.await_for_signal("word"))
            group.create_task(Group.objects.acreate(name="of the rehearsal"))

    stored(beside_a_signal)
    deploy(new)
    assert found() == [("write", "")]


def test_a_history_that_ended_in_an_error_of_a_branch_ends_in_it_again() -> None:
    async def fails() -> None:
        raise PermanentFailure("no")

    async def old(context: JobContext) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(context.astep("b", slow, "b"))
            group.create_task(context.astep("a", fails))

    stored(old, status="DEAD")
    assert found() == []


@pytest.mark.parametrize("ending", [SystemExit, GeneratorExit, BaseExceptionGroup])
def test_whatever_one_history_raises_the_others_are_told(ending: type[BaseException]) -> None:
    async def leaves(context: JobContext) -> None:
        await context.astep("a", slow, "a")
        if ending is BaseExceptionGroup:
            raise BaseExceptionGroup("two", [SystemExit(3), ValueError("no")])
        raise ending

    def leaves_at_once(context: JobContext) -> None:
        sys.exit(3)

    stored(gathered)
    stored(gathered)
    left = [("not_reached", "night"), ("not_reached", "b")]
    deploy(leaves)
    assert sorted(found()) == sorted([("error", ""), *left] * 2)
    deploy(leaves_at_once)
    assert sorted(found()) == sorted([("error", ""), ("not_reached", "a"), *left] * 2)
