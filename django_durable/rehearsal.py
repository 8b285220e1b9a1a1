"""Rehearsals: stored histories run against today's code, to find what a deploy would break.

Nothing is called but the workflow function itself: a recorded checkpoint answers, and the first
verb that is not recorded ends the rehearsal.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

from asgiref.sync import async_to_sync, sync_to_async
from django.db import InternalError, transaction
from django.db.models import Exists, OuterRef

from django_durable import births, payloads, store
from django_durable.choices import FINISHED, UNDO, JobStatus, StepKind, StepStatus
from django_durable.context import JobContext
from django_durable.errortext import ErrorText
from django_durable.exceptions import StopRun
from django_durable.fields import Undecodable
from django_durable.jobtypes import Call, JobType, registry
from django_durable.journal import Known
from django_durable.models import Job, Step
from django_durable.operations import has_dropped_payload
from django_durable.relay import Relay, Relayed
from django_durable.store import Checkpoint, Claim, Written
from django_durable.turns import Key, Turns
from django_durable.waiting import results_of

if TYPE_CHECKING:
    from django_durable.querysets import JobQuerySet


# What PostgreSQL says to a write where none may be.
READ_ONLY_TRANSACTION = "25006"
WAIT_FOR_JOBS = "a wait for jobs that have not ended"


class EndOfHistory(StopRun):
    """End a rehearsal at its first verb that is not recorded."""


@dataclass(frozen=True)
class Finding:
    """Say what of one history today's code does not find again."""

    job: UUID
    name: str
    problem: str
    kind: str
    step: str
    text: str


class Rehearsal(JobContext):
    """Answer verbs from what is recorded, and from nothing else.

    Those of async code, and of plain code in threads beside it, are answered in the order in which
    they were recorded.
    """

    # What calls the plain functions of async code.
    relay: Relay
    # Whether a plain function has come to an async verb.
    needs_loop = False

    def __init__(self, claim: Claim, job_type: JobType, recorded: Sequence[Step]) -> None:
        super().__init__(claim, job_type, None)
        self.order: list[Key] = []
        # The verbs that the run came to, recorded or not.
        self.met: set[Key] = set()
        self.ended_at: list[str] = []
        self.refused_write = ""
        final = [step for step in recorded if step.finished_at is not None]
        final.sort(key=lambda step: (step.finished_at, step.ordinal))
        self.turns = Turns((step.kind, step.name) for step in final)
        self._reached: dict[Key, Known | None] = {}

    def watch(self, execute: Any, sql: Any, params: Any, many: bool, context: Any) -> Any:
        """Let the database execute a statement; one that it refuses as a write ends the run.

        Goes round every statement of the function. What it did after that would say nothing.
        """
        try:
            return execute(sql, params, many, context)
        except InternalError as error:
            if getattr(error.__cause__, "sqlstate", None) != READ_ONLY_TRANSACTION:
                raise
            self.refused_write = str(error).strip().partition("\n")[0]
            self._end("a write to the database")
            raise

    def enter(self, kind: StepKind, name: str) -> Known | None:
        """Return what is recorded, or end."""
        key = (kind.value, name)
        if key in self._reached:
            return self._answer(key, self._reached.pop(key))
        known = self._reach(kind, name)
        if not self.turns.is_beside or (_is_answer(known) and key not in self.journal.load()):
            return self._answer(key, known)
        with self._turn_beside(_told(key), key):
            return self._answer(key, known)

    def _answer(self, key: Key, known: Known | None) -> Known | None:
        if not _is_answer(known):
            self._end(_told(key))
        self.turns.pass_by(key)
        self.order.append(key)
        return known

    @contextmanager
    def _turn_beside(self, text: str, *keys: Key) -> Iterator[None]:
        """Wait, in a thread beside async verbs, until a plain one is to be answered."""
        with self.turns.take_beside(self.relay.aside, text, keys) as is_given:
            if not is_given:
                self.stop(EndOfHistory())
                self.raise_if_stopped()
            yield

    def _reach(self, kind: StepKind, name: str) -> Known | None:
        known = super().enter(kind, name)
        self.met.add((kind.value, name))
        if known is None and kind is StepKind.PATCH and self.journal.has_later():
            # What a run of this history would be told, and record.
            return Known(0, StepStatus.SUCCEEDED, False)
        return known

    @asynccontextmanager
    async def _turn(self, kind: StepKind, *names: str) -> AsyncIterator[None]:
        """Wait until the named verbs are to be answered."""
        self._see_to_loop()
        keys = [(kind.value, name) for name in names]
        is_answered, call = await sync_to_async(self._reach_all)(kind, names)
        if is_answered:
            yield
            return
        missing = [key for key in keys if not _is_answer(self._reached[key])]
        async with self._taken(call, _told((missing or keys)[0]), keys):
            yield

    @asynccontextmanager
    async def _taken(
        self, call: Relayed | None, text: str, keys: Sequence[Key] = ()
    ) -> AsyncIterator[None]:
        """Take a turn on a loop.

        `call` is that of the thread where the coroutine calls plain functions. If it is under way
        it waits for the coroutine, by `async_to_sync`, and stands aside.
        """
        if self.turns.is_beside:
            # On a loop of its own, in another thread.
            with self._turn_beside(text, *keys):
                yield
            return
        async with AsyncExitStack() as turn:
            async with self.relay.aside_below(call):
                await turn.enter_async_context(self.turns.take(text, keys))
            yield

    def _see_to_loop(self) -> None:
        """End, in a plain function, to begin anew where async verbs get their turns."""
        if not self.turns.has_loop:
            self.needs_loop = True
            self._end("an async verb")

    def _reach_all(self, kind: StepKind, names: Sequence[str]) -> tuple[bool, Relayed | None]:
        """Reach the named verbs; return whether they have answers that are not recorded."""
        for name in names:
            self._reached[kind.value, name] = self._reach(kind, name)
        recorded = self.journal.load()
        known = [self._reached[kind.value, name] for name in names]
        is_answered = all(map(_is_answer, known))
        is_new = not any((kind.value, name) in recorded for name in names)
        return is_answered and is_new, self.relay.call

    async def astep(self, name: str, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Return what is recorded when it is to be answered."""
        async with self._turn(StepKind.STEP, name):
            return await super().astep(name, func, *args, **kwargs)

    async def aatomic_step(
        self, name: str, func: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        """Return what is recorded when it is to be answered."""
        async with self._turn(StepKind.STEP, name):
            return await super().aatomic_step(name, func, *args, **kwargs)

    async def anow(self, name: str) -> datetime:
        """Return what is recorded when it is to be answered."""
        async with self._turn(StepKind.VALUE, name):
            return await super().anow(name)

    async def apatched(self, name: str) -> bool:
        """Return what is recorded, or would be, when it is to be answered."""
        async with self._turn(StepKind.PATCH, name):
            return await super().apatched(name)

    async def asleep(self, name: str, until: timedelta | datetime) -> None:
        """Return when the end of the sleep is to be answered."""
        async with self._turn(StepKind.SLEEP, name):
            await super().asleep(name, until)

    async def await_for_signal(
        self, name: str, timeout: float | timedelta | None = None, signal: str | None = None
    ) -> Any:
        """Return what is recorded when it is to be answered."""
        async with self._turn(StepKind.SIGNAL, name):
            return await super().await_for_signal(name, timeout, signal)

    async def astart(self, name: str, job_type: JobType | Call, *args: Any, **kwargs: Any) -> Job:
        """Return the recorded child when it is to be answered."""
        async with self._turn(StepKind.CHILD, name):
            return await super().astart(name, job_type, *args, **kwargs)

    async def astart_many(
        self, name: str, job_type: JobType | Call, calls: Iterable[Sequence[Any]]
    ) -> list[Job]:
        """Return the recorded children when they are to be answered."""
        names, _entries = births.numbered(name, job_type, calls := list(calls))
        async with self._turn(StepKind.CHILD, *names):
            return await super().astart_many(name, job_type, calls)

    def gather(self, jobs: Iterable[Job], return_exceptions: bool = False) -> list[Any]:
        """Return the results of ended jobs, or end."""
        self.guard()
        if not _have_ended(wanted := list(jobs)):
            if self.turns.is_beside:
                with self._turn_beside(WAIT_FOR_JOBS):
                    raise AssertionError("unreachable")
            self._end(WAIT_FOR_JOBS)
        return results_of(wanted, return_exceptions=return_exceptions)

    async def agather(self, jobs: Iterable[Job], return_exceptions: bool = False) -> list[Any]:
        """Return the results of ended jobs, or wait for the end of the rehearsal."""
        self._see_to_loop()
        self.guard()
        wanted = list(jobs)

        def look() -> tuple[bool, Relayed | None]:
            return _have_ended(wanted), self.relay.call

        have_ended, call = await sync_to_async(look)()
        if not have_ended:
            async with self._taken(call, WAIT_FOR_JOBS):
                raise AssertionError("unreachable")
        answers: list[Any] = await sync_to_async(self.gather)(wanted, return_exceptions)
        return answers

    def progress(self, done: float, total: float | None = None, message: str = "") -> None:
        """Show nothing."""

    def check_cancelled(self) -> None:
        """Go on."""

    def record(self, *checkpoints: Checkpoint) -> Written:
        """Record nothing: whoever comes here is past what is recorded."""
        raise EndOfHistory

    @property
    def is_over(self) -> bool:
        """Tell whether the history has come to its end before the function has."""
        return bool(self.ended_at)

    def _end(self, what: str) -> None:
        self.ended_at.append(what)
        self.stop(EndOfHistory())
        self.raise_if_stopped()

    async def arun(self, function: Coroutine[Any, Any, Any]) -> None:
        """Run an async function until it ends, or its history does."""
        try:
            if not await self.turns.run(function, lambda: self.relay.others.are_at_work):
                self.ended_at += [ticket.text for ticket in self.turns.tickets]
        finally:
            # For the verbs that it may come to while it is cancelled.
            self.stop(EndOfHistory())
            await self.turns.end()
            await asyncio.to_thread(self.relay.shutdown)


def _is_answer(known: Known | None) -> bool:
    return known is not None and known.is_final


def _told(key: Key) -> str:
    kind, name = key
    return f"{kind} {name!r}"


def _have_ended(jobs: Sequence[Job]) -> bool:
    wanted = {job.pk for job in jobs}
    ended: int = Job.all_objects.filter(pk__in=wanted, status__in=FINISHED).count()
    return ended == len(wanted)


@dataclass
class Checked:
    """Tell how many histories were rehearsed and what was found, and why others were left out."""

    count: int = 0
    findings: list[Finding] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)


def check_histories(jobs: JobQuerySet) -> Checked:
    """Rehearse the histories of the given workflows.

    Each runs in a READ ONLY transaction that is rolled back. Left out is what has ended and can't
    be run: the code knows no workflow of its name any more, or its arguments are dropped.
    """
    checked = Checked()
    for job in jobs:
        job_type = registry.find(job.name)
        if job_type is not None and job_type.options.takes_context:
            if has_dropped_payload(job):
                checked.left_out["its arguments were dropped as it succeeded"] += 1
                continue
            checked.count += 1
            checked.findings += _check(job, job_type)
        elif job.is_finished:
            checked.left_out["it has ended, and this code has no workflow of its name"] += 1
        else:
            checked.count += 1
            text = f"it is {job.status}, and this code has no workflow {job.name!r}"
            checked.findings.append(Finding(job.pk, job.name, "no_workflow", "", "", text))
    return checked


def with_history(jobs: JobQuerySet) -> JobQuerySet:
    """Return those of the jobs that have recorded something, and are no undo jobs."""
    steps = Step.objects.filter(job=OuterRef("pk"))
    found: JobQuerySet = jobs.filter(Exists(steps)).exclude(metadata__has_key=UNDO)
    return found


@contextmanager
def _read_only() -> Iterator[None]:
    db = store.connection()
    with transaction.atomic(using=db.alias):
        with db.cursor() as cursor:
            cursor.execute("SET TRANSACTION READ ONLY")
        try:
            yield
        finally:
            transaction.set_rollback(True, using=db.alias)


def _check(job: Job, job_type: JobType) -> list[Finding]:
    recorded: list[Step] = list(job.steps.order_by("ordinal", "pk").defer("value", "undo_call"))

    def finding(problem: str, kind: str, step: str, text: str) -> Finding:
        return Finding(job.pk, job.name, problem, kind, step, text)

    if isinstance(job.args, Undecodable) or isinstance(job.kwargs, Undecodable):
        return [finding("undecodable", "", "", "its arguments can't be decoded")]
    # The transaction is there before the context, which refuses verbs in what the function opens.
    with _read_only():
        rehearsal, problem = _rehearse(job, job_type, recorded, on_loop=job_type.is_async)
        if rehearsal.needs_loop:
            rehearsal, problem = _rehearse(job, job_type, recorded, on_loop=True)
    if rehearsal.refused_write:
        text = (
            "the function writes to the database outside a step, which a resumed run does again;"
            f" its history is checked no further: {rehearsal.refused_write}"
        )
        return [finding("write", "", "", text)]
    findings = [] if problem is None else [finding("error", "", "", problem)]
    return (
        findings + _missing(rehearsal, recorded, finding) + _disorder(rehearsal, recorded, finding)
    )


def _missing(
    rehearsal: Rehearsal, recorded: Sequence[Step], finding: Callable[..., Finding]
) -> list[Finding]:
    names = {name for _kind, name in rehearsal.met}
    stopped = (
        f"; the run came to {', '.join(rehearsal.ended_at)} first" if rehearsal.is_over else ""
    )
    findings = []
    for step in recorded:
        if (step.kind, step.name) in rehearsal.met:
            continue
        if step.name in names:
            text = f"{step.name!r} is recorded as {step.kind}, and now of another kind"
            findings.append(finding("other_kind", step.kind, step.name, text))
        elif step.status != Step.Status.PENDING or not rehearsal.is_over:
            # A wait under way may come yet, as what is new always may.
            text = f"{step.kind} {step.name!r} is recorded, and not reached any more{stopped}"
            findings.append(finding("not_reached", step.kind, step.name, text))
    return findings


def _disorder(
    rehearsal: Rehearsal, recorded: Sequence[Step], finding: Callable[..., Finding]
) -> list[Finding]:
    steps = {(step.kind, step.name): step for step in recorded}
    findings: list[Finding] = []
    before: list[Step] = []
    last = 0
    for step in (steps[key] for key in rehearsal.order if key in steps):
        if step.ordinal < last and any(_is_after(other, step) for other in before):
            text = f"{step.kind} {step.name!r} is now reached after what it was recorded before"
            findings.append(finding("other_order", step.kind, step.name, text))
        last = max(last, step.ordinal)
        before.append(step)
    return findings


def _is_after(step: Step, other: Step) -> bool:
    """Tell whether a step was begun after another had ended: of others no order is promised.

    It may have begun before that by the time that its record took to the database. The number of a
    wait is older than its row, which may have been written only at the park.
    """
    if other.finished_at is None or step.ordinal < other.ordinal:
        return False
    return bool(step.started_at >= other.finished_at)


def _rehearse(
    job: Job, job_type: JobType, recorded: Sequence[Step], *, on_loop: bool
) -> tuple[Rehearsal, str | None]:
    """Run the function, on an event loop or not; return what it came to, and what went wrong."""
    rehearsal = Rehearsal(_claim_of(job), job_type, recorded)
    with store.connection().execute_wrapper(rehearsal.watch):
        return rehearsal, _run(rehearsal, job, on_loop=on_loop)


def _run(rehearsal: Rehearsal, job: Job, *, on_loop: bool) -> str | None:
    """Run the function; return what went wrong beyond what its own history explains."""
    try:
        with rehearsal.running():
            _call(rehearsal, job, on_loop=on_loop)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - users' code
        # What it raises when its history has ended, or while it is stopped, says nothing.
        if rehearsal.is_over or isinstance(error, StopRun):
            return None
        # A history that ended in an error ends in it again; one that broke off elsewhere did not.
        if job.status in (JobStatus.DEAD, JobStatus.CANCELLED):
            return None
        return f"{type(error).__name__}: {ErrorText.told_of(error).message}"
    return None


def _call(rehearsal: Rehearsal, job: Job, *, on_loop: bool) -> None:
    function, args, kwargs = rehearsal.job_type.func, job.args, job.kwargs
    # Before anything asks for it on the event loop, where nobody may ask the database.
    rehearsal.journal.load()
    if on_loop:
        if not rehearsal.job_type.is_async:
            function = sync_to_async(function)
        rehearsal.relay = Relay()
        try:
            async_to_sync(_acall, force_new_loop=True)(rehearsal, function, args, kwargs)
        finally:
            rehearsal.relay.close()
    else:
        function(rehearsal, *args, **kwargs)


async def _acall(
    rehearsal: Rehearsal, function: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]
) -> None:
    with rehearsal.relay.serving():
        await rehearsal.arun(function(rehearsal, *args, **kwargs))


def _claim_of(job: Job) -> Claim:
    return Claim(
        id=job.pk,
        epoch=job.epoch,
        name=job.name,
        queue_name=job.queue_name,
        priority=job.priority,
        attempt=max(job.attempt, 1),
        max_attempts=job.max_attempts,
        args=payloads.encode(job.args, where="args", limit=None),
        kwargs=payloads.encode(job.kwargs, where="kwargs", limit=None),
        options=job.options,
        run_after=job.run_after,
        due_at=job.run_after,
        claimed_at=job.claimed_at or job.enqueued_at,
        rejections=job.rejections,
        resumed=job.resumed,
        parent_id=job.parent_id,
        root_id=job.root_id or job.pk,
        depth=job.depth,
        delivery_id=job.delivery_id,
        concurrency_key=job.concurrency_key,
        idempotency_key=job.idempotency_key,
        requires=job.requires,
        metadata=job.metadata,
        enqueued_at=job.enqueued_at,
        started_at=job.started_at or job.enqueued_at,
        lane=0,
    )
