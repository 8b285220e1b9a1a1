"""Workflows for real workers, and ways for them to die at a given point."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from asgiref.sync import sync_to_async
from django.db import OperationalError, connection, transaction

from django_durable import (
    Backoff,
    CancelJob,
    JobContext,
    PermanentFailure,
    faults,
    job,
    step,
    workflow,
)
from django_durable.models import Job
from tests.workerapp.models import Debit
from tests.workerapp.notes import Notes

AT_ONCE = Backoff(initial=timedelta(0), jitter=0.0)
HOUR = timedelta(hours=1)


def kill_once(folder: str, label: str) -> None:
    """Kill this process, if nobody has died for this label yet."""
    try:
        (Path(folder) / f"died-{label}").touch(exist_ok=False)
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


@contextmanager
def deadly(folder: str, label: str, point: str) -> Iterator[None]:
    """Kill this process once as this thread reaches the point.

    Points: those of the run, statements of the store, `COMMIT` just before one, `COMMITTED` after.
    """
    thread = threading.get_ident()

    def reached(name: str) -> None:
        if name == point and threading.get_ident() == thread:
            kill_once(folder, label)

    def commit() -> None:
        reached("COMMIT")
        original()
        reached("COMMITTED")

    # One hook for the process, and several of these jobs at once.
    if faults.hook is None:
        faults.hook = _reach_all
    _hooks[label] = reached
    connection.ensure_connection()
    original, connection._commit = connection._commit, commit
    try:
        yield
    finally:
        del _hooks[label], connection._commit


_hooks: dict[str, Any] = {}


def _reach_all(point: str) -> None:
    for hook in list(_hooks.values()):
        hook(point)


def debit(cause: str, amount: int) -> int:
    """Write a debit; return the number of debits for this cause."""
    Debit.objects.create(cause=cause, amount=amount)
    return Debit.objects.filter(cause=cause).count()


@workflow(max_attempts=None, backoff=AT_ONCE, timeout=HOUR)
def pay(context: JobContext, folder: str, label: str, point: str) -> list[int]:
    """Debit three times, each in an atomic step; die once at the point of the second."""
    counts = [context.atomic_step("first", debit, f"{label}-1", 1)]
    with deadly(folder, label, point):
        counts.append(context.atomic_step("second", debit, f"{label}-2", 2))
    counts.append(context.atomic_step("third", debit, f"{label}-3", 3))
    return counts


@workflow(max_attempts=None, backoff=AT_ONCE, timeout=HOUR, isolation="process")
def pay_isolated(context: JobContext, folder: str, label: str, point: str) -> list[int]:
    """Do what `pay` does in a process of its own, whose death costs nobody else."""
    return pay.func(context, folder, label, point)


@workflow(max_attempts=None, backoff=AT_ONCE, timeout=HOUR)
def call_out(context: JobContext, folder: str, label: str) -> str:
    """Die once between the call of a plain step and its record."""
    faults.hook = lambda point: kill_once(folder, label) if point == "before_step_record" else None
    try:
        context.step("call", Notes(folder).add, "called", label=label)
    finally:
        faults.hook = None
    return label


@workflow(max_attempts=None, backoff=AT_ONCE, timeout=HOUR)
def through_every_point(context: JobContext, folder: str) -> int:
    """Do a step, park, and end."""

    def call() -> int:
        Notes(folder).add("called")
        return 3

    value: int = context.step("step", call)
    context.sleep("sleep", timedelta(seconds=1.1))
    return value


@workflow(max_attempts=None, backoff=AT_ONCE, timeout=HOUR)
def pay_slowly(context: JobContext, folder: str) -> int:
    """Debit in an atomic step that waits inside until the test says go, in its first run only."""
    notes = Notes(folder)

    def slowly() -> int:
        count = debit("slow", 1)
        first = not notes.read("inside")
        notes.add("inside", backend=_backend(), first=first)
        if first:
            notes.wait_to_go("slow")
        return count

    before = context.step("before", notes.add, "before")
    value: int = context.atomic_step("pay", slowly)
    context.step("after", notes.add, "after", value=value, before=before)
    return value


def _backend() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        pid: int = cursor.fetchone()[0]
    return pid


@workflow(timeout=HOUR)
def step_slowly(context: JobContext, folder: str) -> list[Any]:
    """Hold in a step until the test says go; return what each step returned, and note each call."""
    notes = Notes(folder)

    def hold() -> int:
        first = not notes.read("hold")
        notes.add("hold")
        if first:
            notes.wait_to_go("hold")
        return os.getpid()

    def last() -> int:
        notes.add("last")
        return os.getpid()

    return [context.step("hold", hold), context.step("last", last)]


@workflow(timeout=HOUR)
def hold_between_steps(context: JobContext, folder: str) -> None:
    """Do two steps, and between them wait in the first run until the test says go."""
    notes = Notes(folder)
    context.step("before", len, "a")
    if not notes.read("between"):
        notes.add("between")
        notes.wait_to_go("between")
    context.step("after", notes.add, "after")


@workflow(timeout=HOUR)
async def ahold_between_steps(context: JobContext, folder: str) -> None:
    """Do what `hold_between_steps` does, from async code."""
    notes = Notes(folder)
    await context.astep("before", len, "a")
    if not notes.read("between"):
        notes.add("between")
        while not notes.may_go("between"):  # noqa: ASYNC110 - files tell
            await asyncio.sleep(0.01)
    await context.astep("after", notes.add, "after")


@workflow(timeout=HOUR)
def step_often(context: JobContext, count: int) -> int:
    """Do so many steps that do nothing."""
    return sum(context.step(f"step-{number}", len, "a") for number in range(count))


@workflow(timeout=HOUR, max_attempts=1)
def do_until_told(context: JobContext, folder: str, verb: str) -> int:
    """Use a verb again and again until the test says go; note that it is under way."""
    notes = Notes(folder)
    notes.add("under way")
    count = 0
    while not notes.may_go("all"):
        if verb == "step":
            context.step(f"step-{count}", int)
        elif verb == "progress":
            context.progress(count)
        elif verb == "check":
            context.check_cancelled()
        elif verb == "sleep":
            context.sleep(f"sleep-{count}", timedelta(seconds=0.01))
        count += 1
        # Else it is `end`: nothing is written but that.
        threading.Event().wait(0.01)
    return count


@workflow(timeout=HOUR, max_attempts=1)
def await_by_id(context: JobContext, job: str) -> Any:
    """Wait for any job, and return its result."""
    return context.gather([Job.objects.get(pk=job)])[0]


@workflow(timeout=HOUR, isolation="process")
def step_often_isolated(context: JobContext, count: int) -> int:
    """Do what `step_often` does in a process of its own."""
    return step_often.func(context, count)


@workflow(max_attempts=None, backoff=AT_ONCE, timeout=HOUR)
def three_steps(context: JobContext, folder: str, label: str) -> list[float]:
    """Note each call of a step with a number that it draws; the second waits for the test's go."""
    notes = Notes(folder)

    def draw(event: str) -> float:
        number = random.random()  # noqa: S311 - no secret
        notes.add(event, label=label, number=number)
        if event == "second":
            notes.wait_to_go(label)
        return number

    return [context.step(event, draw, event) for event in ("first", "second", "third")]


@workflow(timeout=HOUR)
def nap(context: JobContext, seconds: float) -> float:
    """Sleep; return how many seconds have passed for the database."""
    before = context.now("before")
    context.sleep("nap", timedelta(seconds=seconds))
    return (context.now("after") - before).total_seconds()


@workflow(timeout=HOUR)
def approve(
    context: JobContext, folder: str, pause: float = 0.0, timeout: float | None = None
) -> dict[str, Any]:
    """Wait for the signal `approval` after a pause in place; say when what was reached."""
    context.sleep("pause", timedelta(seconds=pause))
    before = context.now("before")
    try:
        payload = context.wait_for_signal("approval", timeout=timeout)
    except Exception as error:  # noqa: BLE001 - the test looks at it
        payload = type(error).__name__
    return {"before": before, "payload": payload, "after": context.now("after")}


@workflow(timeout=HOUR, isolation="process")
def approve_isolated(context: JobContext, folder: str) -> dict[str, Any]:
    """Do what `approve` does in a process of its own."""
    return approve.func(context, folder)


@workflow
def leaf(context: JobContext, value: int) -> int:
    """Return the square."""
    return value * value


@workflow
def branch(context: JobContext, value: int, width: int) -> int:
    """Add the squares from value on."""
    calls = [((number,), {}) for number in range(value, value + width)]
    return sum(context.gather(context.start_many("leaf", leaf, calls)))


@workflow(timeout=HOUR)
def tree(context: JobContext, branches: int, width: int) -> int:
    """Add up over two levels of children."""
    started = [
        context.start(f"branch-{number}", branch, number * width, width)
        for number in range(branches)
    ]
    return sum(context.gather(started))


@workflow(max_attempts=None, backoff=AT_ONCE, timeout=HOUR)
def fan_out(context: JobContext, folder: str, children: int, point: str) -> int:
    """Start children one by one and in bulk; die once at the point of the middle one."""
    started = []
    for number in range(children):
        if number == children // 2:
            with deadly(folder, "fan", point):
                started.append(context.start(f"leaf-{number}", leaf, number))
        else:
            started.append(context.start(f"leaf-{number}", leaf, number))
    with deadly(folder, "bulk", point):
        calls = [((number,), {}) for number in range(children)]
        started += context.start_many("bulk", leaf, calls)
    return sum(context.gather(started))


@workflow(max_attempts=1, timeout=timedelta(seconds=2))
def outlive(context: JobContext, seconds: float) -> int:
    """Await a child that takes longer than the own timeout."""
    value: int = context.call("slow", slow_leaf, seconds)
    return value


@workflow(timeout=HOUR)
def slow_leaf(context: JobContext, seconds: float) -> int:
    """Take the time in the thread, and return the number of the attempt."""
    threading.Event().wait(seconds)
    return context.attempt


@workflow(timeout=HOUR)
async def async_flow(context: JobContext, folder: str) -> list[Any]:
    """Use every verb of async code in one run."""

    async def slow(value: int) -> int:
        await asyncio.sleep(0.01)
        Notes(folder).add("async step", value=value)
        return value

    several = await asyncio.gather(
        *(context.astep(f"step-{number}", slow, number) for number in range(5))
    )
    paid = await context.aatomic_step("pay", debit, "async", 1)
    await context.asleep("nap", timedelta(seconds=1.2))
    child = await context.astart("leaf", leaf, 3)
    signalled = await context.await_for_signal("word")
    return [several, paid, await child.aresult(), signalled, await context.astep("sync", len, "ab")]


def _hold(folder: str, label: str) -> str:
    Notes(folder).add("hold", label=label)
    Notes(folder).wait_to_go(label)
    Notes(folder).add("held", label=label)
    return label


@workflow(timeout=HOUR)
async def hold_in_a_thread(context: JobContext, folder: str, label: str) -> str:
    """Use a plain function that takes long as a step of an async workflow."""
    held: str = await context.astep("hold", _hold, folder, label)
    return held


def _refund(value: str, folder: str) -> None:
    Notes(folder).add("refund", value=value)


@step(compensate=_refund)
def _charge(folder: str) -> str:
    return _hold(folder, "charge")


@step(compensate=_refund)
async def _acharge(folder: str) -> str:
    await asyncio.to_thread(Notes(folder).wait_to_go, "async")
    Notes(folder).add("charged")
    return "charge"


@workflow(timeout=HOUR, max_attempts=1)
async def charge_beside_another_branch(context: JobContext, folder: str, kind: str) -> None:
    """Do a step that its undo job takes back, and tell when the run is cancelled.

    Its function is plain, or async and ends while a plain one holds the thread of the run.
    """

    async def other() -> None:
        try:
            await asyncio.sleep(HOUR.total_seconds())
        finally:
            Notes(folder).add("told")

    steps = [context.astep("charge", _charge if kind == "plain" else _acharge, folder)]
    if kind == "async":
        steps.insert(0, context.astep("hold", _hold, folder, "charge"))
    await asyncio.gather(*steps, other())


@workflow(timeout=timedelta(seconds=3), max_attempts=1)
async def async_quick(context: JobContext) -> int:
    """Do a step of async code, and one of a plain function."""

    async def one() -> int:
        return 1

    return await context.astep("one", one) + await context.astep("two", len, "ab")


@workflow(timeout=HOUR, backoff=AT_ONCE)
async def wait_beside_a_step(context: JobContext, folder: str, wait: str) -> list[Any]:
    """Do a step of async code while the run waits for something else, or fails."""

    async def long() -> str:
        Notes(folder).add("long", attempt=context.attempt)
        try:
            while not Notes(folder).may_go("long"):  # noqa: ASYNC110 - files tell
                await asyncio.sleep(0.01)
        finally:
            Notes(folder).add("long ended", attempt=context.attempt)
        return "long"

    async def other() -> Any:
        if wait == "sleep":
            return await context.asleep("nap", timedelta(seconds=1.2))
        if wait == "signal":
            return await context.await_for_signal("word")
        if wait == "child":
            return await (await context.astart("leaf", leaf, 3)).aresult()
        if wait == "retry":
            return await context.astep("insist", _insist, folder)
        while not Notes(folder).read("long"):  # noqa: ASYNC110 - files tell
            await asyncio.sleep(0.01)
        if context.attempt == 1:
            raise ValueError("the first time")
        return None

    return list(await asyncio.gather(context.astep("long", long), other()))


@step(max_attempts=2, backoff=Backoff(initial=timedelta(seconds=1.5), jitter=0.0))
async def _insist(folder: str) -> str:
    Notes(folder).add("insist")
    if len(Notes(folder).read("insist")) == 1:
        raise ValueError("the first time")
    return "insisted"


@workflow(timeout=HOUR, max_attempts=2, backoff=AT_ONCE)
async def fail_between_steps(context: JobContext, folder: str) -> None:
    """Fail in one branch while another stands between two steps."""

    async def charge() -> None:
        Notes(folder).add("charge")

    async def branch() -> None:
        await context.astep(f"first-{context.attempt}", charge)
        await asyncio.sleep(0.5)
        await context.astep("second", charge)

    async def fail() -> None:
        await asyncio.sleep(0.2)
        raise ValueError("the other branch")

    await asyncio.gather(branch(), fail())


@workflow(timeout=HOUR)
async def wait_in_a_branch(context: JobContext) -> str:
    """Wait durably in a task while the function itself waits for something of its own."""
    done = asyncio.Event()

    async def consume() -> None:
        await context.asleep("nap", timedelta(seconds=1.5))
        done.set()

    task = asyncio.create_task(consume())
    await done.wait()
    await task
    return "done"


@job(timeout=HOUR)
async def leave_a_thread_busy(folder: str) -> str:
    """Return while a coroutine that is left behind still calls something in the thread."""

    async def left() -> None:
        await sync_to_async(_hold)(folder, "left")

    task = asyncio.create_task(left())
    while not Notes(folder).read("hold"):  # noqa: ASYNC110 - files tell
        await asyncio.sleep(0.01)
    return str(task.done())


@job(timeout=HOUR, max_attempts=1)
async def leave_a_reader() -> None:
    """Fail while a coroutine that is left behind reads the database."""

    async def read() -> None:
        for _ in range(6):
            await Debit.objects.acount()
            await asyncio.sleep(0.1)

    async def fail() -> None:
        await asyncio.sleep(0.05)
        raise ValueError("no")

    await asyncio.gather(fail(), read())


@job(queue_name="served-by-nobody")
def never() -> None:
    """Be a child that no worker of a test serves."""


async def _wait_long(context: JobContext, wait: str) -> Any:
    if wait == "sleep":
        return await context.asleep("long", HOUR)
    if wait == "signal":
        return await context.await_for_signal("word", timeout=HOUR)
    return await (await context.astart("never", never)).aresult()


@workflow(timeout=HOUR, max_attempts=1)
async def end_beside_a_wait(context: JobContext, wait: str, how: str) -> Any:
    """Come to an end by one branch while another waits for an hour."""

    async def work() -> str:
        await asyncio.sleep(0.1)
        if how in ("failure", "group"):
            raise PermanentFailure("no use")
        if how == "cancel":
            raise CancelJob("not needed")
        return "first"

    step = context.astep("work", work)
    if how == "group":
        async with asyncio.TaskGroup() as group:
            group.create_task(step)
            return await _wait_long(context, wait)
    if how == "return":
        left = asyncio.create_task(_wait_long(context, wait))
        await asyncio.sleep(0.005)
        return [await step, left.done()]
    if how == "race":
        tasks = [asyncio.create_task(part) for part in (step, _wait_long(context, wait))]
        done, left_over = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in left_over:
            task.cancel()
        return [task.result() for task in done]
    return await asyncio.gather(_wait_long(context, wait), step)


@workflow(timeout=HOUR, max_attempts=1)
async def fail_after_many_steps_beside_a_wait(context: JobContext, wait: str, _how: str) -> None:
    """Fail in a branch that pauses between its steps, while another waits for an hour."""

    async def work() -> None:
        for number in range(20):
            await context.astep(f"step-{number}", asyncio.sleep, 0)
            await asyncio.sleep(0.005)
        raise PermanentFailure("no use")

    await asyncio.gather(_wait_long(context, wait), work())


@step(max_attempts=3, backoff=Backoff(initial=timedelta(milliseconds=5), jitter=0.0))
async def _fail_once(folder: str, label: str) -> str:
    if not Notes(folder).read("failed", label=label):
        Notes(folder).add("failed", label=label)
        raise ValueError("the first time")
    Notes(folder).add("effect", label=label)
    return label


@workflow(timeout=HOUR, max_attempts=1)
async def retry_beside_a_wait(context: JobContext, folder: str, label: str) -> list[Any]:
    """Try a step again, very soon, while another branch is about to park."""
    nap = context.asleep("nap", timedelta(seconds=1.5))
    return list(await asyncio.gather(nap, context.astep("charge", _fail_once, folder, label)))


@workflow(timeout=HOUR, max_attempts=1)
async def sleep_long(context: JobContext) -> None:
    """Sleep for an hour."""
    await context.asleep("long", HOUR)


@workflow(timeout=HOUR, max_attempts=1)
async def end_beside_a_locked_park(context: JobContext, folder: str, how: str) -> str:
    """End while a branch that waits for a child is about to park, as the test lets it."""
    child = await context.astart("never", never)
    Notes(folder).add("child", job=str(child.pk))
    while not Notes(folder).may_go("park"):  # noqa: ASYNC110 - files tell
        await asyncio.sleep(0.01)
    branch = asyncio.create_task(child.aresult())
    while not Notes(folder).may_go("end"):  # noqa: ASYNC110 - files tell
        await asyncio.sleep(0.01)
    if how == "failure":
        raise PermanentFailure("no use")
    return f"left {branch.done()}"


def _debit_and(then: str, cause: str) -> int:
    """Debit, and let something go wrong after the commit."""
    if then == "raise":

        def hook() -> None:
            raise ConnectionError("the mail server is away")

        transaction.on_commit(hook)
    else:
        commit = connection._commit  # type: ignore[attr-defined]

        def lose_answer() -> None:
            connection._commit = commit  # type: ignore[attr-defined]
            commit()
            connection.connection.close()
            raise OperationalError("the connection is lost")

        connection._commit = lose_answer  # type: ignore[attr-defined]
    return debit(cause, 1)


@step(max_attempts=5)
def debit_and(then: str, cause: str) -> int:
    """Debit under a policy, so that what goes wrong could be another try."""
    return _debit_and(then, cause)


@workflow(max_attempts=1, timeout=HOUR)
def committed(context: JobContext, then: str) -> int:
    """Debit, where what comes after the commit goes wrong."""
    value: int = context.atomic_step("debit", debit_and, then, "plain")
    return value


@workflow(max_attempts=1, timeout=HOUR, isolation="process")
def isolated_committed(context: JobContext, then: str) -> int:
    """Do the same in a process of its own."""
    value: int = context.atomic_step("debit", debit_and, then, "isolated")
    return value


@workflow(max_attempts=1, timeout=HOUR)
async def async_committed(context: JobContext, then: str) -> int:
    """Do the same beside another step."""

    async def other() -> None:
        await asyncio.sleep(1.5)

    paid, _ = await asyncio.gather(
        context.aatomic_step("debit", debit_and, then, "async"), context.astep("other", other)
    )
    return paid
