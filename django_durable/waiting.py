"""Waits: sleeps, signals and the ends of other jobs. A wait of more than a moment parks the run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django_durable import payloads, store
from django_durable.backoff import LONGEST
from django_durable.choices import FINISHED, StepKind, StepStatus
from django_durable.durations import seconds
from django_durable.exceptions import (
    DurableError,
    JobCancelled,
    JobFailed,
    SignalTimeout,
)
from django_durable.journal import Known, check_name
from django_durable.store import Checkpoint
from django_durable.underway import AT_ONCE, Rank

if TYPE_CHECKING:
    from django_durable.context import JobContext
    from django_durable.models import Job


def begin_sleep(
    context: JobContext,
    name: str,
    until: timedelta | datetime,
    since: int | None = AT_ONCE,
    rank: Rank = Rank.JOBS,
) -> float | None:
    """Record when the sleep ends; return the seconds to wait in place, or None if it is over.

    Parks the run if that is more than a moment and nothing of it has happened `since`.
    """
    moment, delay = _checked(until)
    known = context.enter(StepKind.SLEEP, name)
    if known is not None and known.is_final:
        return None
    if known is not None and known.wake_at is not None:
        moment, delay = known.wake_at, None
    left = (moment - context.clock()).total_seconds() if moment is not None else delay or 0.0
    ordinal = known.ordinal if known else context.journal.next_ordinal()
    if left <= 0:
        _end_sleep(context, name, ordinal, moment)
        return None
    checkpoint = _sleeping(context, name, ordinal, moment, delay)
    if left > context.MOMENT and context.may_park(since, rank=rank):
        context.park(checkpoint)
    written = context.record(checkpoint)
    context.journal.keep(
        StepKind.SLEEP, name, Known(ordinal, StepStatus.PENDING, wake_at=written.wake_at)
    )
    return left


def go_on_sleeping(context: JobContext, name: str, since: int | None, rank: Rank) -> float:
    """Return the seconds that are left of a sleep under way; park as `begin_sleep` does."""
    known = context.journal.load()[(StepKind.SLEEP.value, name)]
    assert known.wake_at is not None  # noqa: S101 - recorded when it began
    left = (known.wake_at - context.clock()).total_seconds()
    if left > context.MOMENT and context.may_park(since, rank=rank):
        context.park(_sleeping(context, name, known.ordinal, known.wake_at))
    return left


def _sleeping(
    context: JobContext,
    name: str,
    ordinal: int,
    wake_at: datetime | None,
    delay: float | None = None,
) -> Checkpoint:
    return Checkpoint(
        context.right,
        StepKind.SLEEP,
        name,
        ordinal,
        StepStatus.PENDING,
        wake_at=wake_at,
        delay=delay,
    )


def end_sleep(context: JobContext, name: str) -> None:
    """Record that a sleep that was waited for in place is over."""
    known = context.journal.load()[(StepKind.SLEEP.value, name)]
    _end_sleep(context, name, known.ordinal, known.wake_at)


def _end_sleep(context: JobContext, name: str, ordinal: int, wake_at: datetime | None) -> None:
    kind, status = StepKind.SLEEP, StepStatus.SUCCEEDED
    context.record(Checkpoint(context.right, kind, name, ordinal, status, wake_at=wake_at))
    context.journal.keep(kind, name, Known(ordinal, status))


def _checked(until: timedelta | datetime) -> tuple[datetime | None, float | None]:
    if isinstance(until, timedelta):
        if until > LONGEST:
            raise ValueError(f"a sleep takes at most {LONGEST.days} days, not {until!r}")
        return None, until.total_seconds()
    if not isinstance(until, datetime) or until.utcoffset() is None:  # type: ignore[redundant-expr]
        raise ValueError(f"sleep takes a timedelta or an aware datetime, not {until!r}")
    try:
        return until.astimezone(UTC), None
    except OverflowError:
        raise ValueError(f"sleep takes the years 1 to 9999 in UTC, not {until!r}") from None


@dataclass
class SignalWait:
    """Be a wait for a signal: what is recorded of it so far."""

    name: str
    wanted: str
    checkpoint: Checkpoint
    known: Known | None = None

    def answer(self) -> Any:
        """Return the payload, or raise `SignalTimeout`, as recorded."""
        assert self.known is not None  # noqa: S101 - it is over
        return _answer(self.known, self.wanted)


def begin_signal(
    context: JobContext, name: str, timeout: float | timedelta | None, signal: str | None
) -> SignalWait:
    """Reach the checkpoint of a wait for a signal."""
    limit = seconds(timeout)
    if limit is not None and limit < 0:
        raise ValueError(f"timeout must not be negative: {timeout!r}")
    if limit is not None and limit > LONGEST.total_seconds():
        raise ValueError(f"timeout must be at most {LONGEST.days} days: {timeout!r}")
    wanted = name if signal is None else signal
    check_name(wanted, "a signal")
    known = context.enter(StepKind.SIGNAL, name)
    checkpoint = Checkpoint(
        context.right,
        StepKind.SIGNAL,
        name,
        known.ordinal if known else context.journal.next_ordinal(),
        StepStatus.PENDING,
        wake_at=known.wake_at if known else None,
        delay=None if known else limit,
    )
    return SignalWait(name, wanted, checkpoint, _final(known))


def look_for_signal(
    context: JobContext,
    wait: SignalWait,
    since: int | None = AT_ONCE,
    rank: Rank = Rank.JOBS,
) -> bool:
    """Record what the wait has come to; return whether it is over.

    If it is not the run is parked, if nothing of it has happened `since`.
    """
    if wait.known is not None:
        return True

    def write() -> bool:
        try:
            with context.connected():
                return _wait(context, wait, since, rank)
        except store.RowLocked:
            # By a signal that is not committed yet, say. This run waits for that, and no other.
            return _wait(context, wait, since, rank)

    try:
        parked = context.insist(write, lambda: _found_parked(context, wait))
    except BaseException:
        context.is_parked = False
        raise
    if parked:
        context.end_parked()
    return _note(context, wait)


def _note(context: JobContext, wait: SignalWait) -> bool:
    """Keep in mind what was stored of a wait that has not parked; return whether it is over."""
    if wait.known is not None:
        return True
    checkpoint = wait.checkpoint
    known = Known(
        checkpoint.ordinal,
        checkpoint.status,
        None if checkpoint.value is None else payloads.decode(checkpoint.value),
        message=checkpoint.message,
        wake_at=checkpoint.wake_at,
    )
    if not known.is_final:
        if known.wake_at is not None:
            context.journal.keep(StepKind.SIGNAL, wait.name, known)
        return False
    wait.known = known
    context.journal.keep(StepKind.SIGNAL, wait.name, known)
    return True


def _found_parked(context: JobContext, wait: SignalWait) -> bool | None:
    """Tell what is stored though the answer was lost: a park, or an end; None for neither."""
    if context.is_parked and context.has_let_go():
        return True
    context.is_parked = False
    known = context.reread(StepKind.SIGNAL, wait.name)
    wait.known = _final(known)
    if wait.known is not None:
        return False
    if known is not None:
        # Its deadline is the one that was stored first.
        wait.checkpoint = replace(wait.checkpoint, wake_at=known.wake_at, delay=None)
    return None


def _final(known: Known | None) -> Known | None:
    return known if known is not None and known.is_final else None


def _wait(context: JobContext, wait: SignalWait, since: int | None, rank: Rank) -> bool:
    """Store what the wait has come to, in one commit, and tell whether that is a park."""
    with store.transaction():
        checkpoint = _decide(context, wait.checkpoint, wait.wanted)
        goes_on = checkpoint.status is StepStatus.PENDING
        if goes_on and context.may_park(since, rank=rank):
            return context.try_park(checkpoint, signal=wait.wanted)
        if not goes_on or checkpoint.delay is not None:
            written = context.record(checkpoint)
            if goes_on:
                # The deadline counts from the first look on.
                checkpoint = replace(checkpoint, wake_at=written.wake_at, delay=None)
    wait.checkpoint = checkpoint
    return False


def _decide(context: JobContext, checkpoint: Checkpoint, wanted: str) -> Checkpoint:
    """Return what is to be recorded of the wait: the signal, the timeout, or that it goes on.

    The lock comes first: a signal that is sent meanwhile waits for it, and finds the park.
    """
    now = context.lock().now
    text = store.read_signal(store.connection(), context.right[0], wanted)
    if text is not None:
        return replace(checkpoint, status=StepStatus.SUCCEEDED, value=text)
    deadline = checkpoint.wake_at
    is_over = checkpoint.delay == 0 if deadline is None else now is not None and now >= deadline
    if not is_over:
        return checkpoint
    return replace(
        checkpoint,
        status=StepStatus.FAILED,
        error_class="SignalTimeout",
        message=f"no signal {wanted!r} came in time",
    )


def _answer(known: Known, signal: str) -> Any:
    if known.status is StepStatus.FAILED:
        raise SignalTimeout(known.message or f"no signal {signal!r} came in time")
    return payloads.decode(payloads.encode(known.value, where="", limit=None))


def begin_gather(context: JobContext, jobs: Sequence[Job]) -> dict[UUID, Job]:
    """Let jobs of other trees be kept for the run, and return those of the jobs that have ended."""
    context.guard()
    ids = [job.pk for job in jobs]
    foreign = [job.pk for job in jobs if job.root_id != context.claim.root_id]
    if foreign:
        # Before the look, so that what it finds is there for every later run, too.
        held = context.insist(
            lambda: store.hold_awaited(store.connection(), context.right[0], foreign),
            context.wait_for_database,
        )
        _refuse_gone(job for job in foreign if job not in held)
    ended = _look(context, ids)
    if len(ended) < len(set(ids)):
        context.ask(lambda: _refuse_ancestors(context, ids))
    return ended


def look_for_ends(
    context: JobContext,
    jobs: Sequence[Job],
    ended: dict[UUID, Job],
    since: int | None = AT_ONCE,
) -> bool:
    """Return whether all jobs have ended.

    If not the run is parked, if nothing of it has happened `since`.
    """
    while waiting := [job.pk for job in jobs if job.pk not in ended]:
        if not context.may_park(since):
            context.raise_if_stopped()
            ended.update(_look(context, waiting))
            return all(job in ended for job in waiting)
        # Other tasks may wait at the same time, if this is no plain verb.
        signal = context.under_way.signal() if since != AT_ONCE else None
        context.park(awaited=list(dict.fromkeys(waiting)), signal=signal)
        # All have ended between the look and the park, or the signal has come.
        ended.update(_look(context, waiting))
        if signal is not None:
            return all(job in ended for job in waiting)
    return True


def _look(context: JobContext, ids: Sequence[UUID]) -> dict[UUID, Job]:
    return context.ask(lambda: _ended(ids), len(ids))


def results_of(jobs: Sequence[Job], *, return_exceptions: bool) -> list[Any]:
    """Return the results of jobs that have all ended, in order, as `gather` does."""
    ended = _ended([job.pk for job in jobs])
    return in_order(jobs, ended, return_exceptions=return_exceptions)


def in_order(jobs: Sequence[Job], ended: dict[UUID, Job], *, return_exceptions: bool) -> list[Any]:
    """Return the results of ended jobs in the order of `jobs`, or raise the first failure."""
    answers = [_result(job, ended[job.pk]) for job in jobs]
    if not return_exceptions:
        for answer in answers:
            if isinstance(answer, JobFailed | JobCancelled):
                raise answer
    return answers


def _ended(ids: Sequence[UUID]) -> dict[UUID, Job]:
    from django_durable.models import Job

    found = Job.all_objects.filter(pk__in=set(ids)).only(
        "id", "name", "status", "return_value", "cancel_reason", "root_id"
    )
    jobs = {job.pk: job for job in found}
    _refuse_gone(job for job in ids if job not in jobs)
    return {pk: job for pk, job in jobs.items() if job.status in FINISHED}


def _refuse_gone(gone: Iterable[UUID]) -> None:
    from django_durable.models import Job

    for job in gone:
        raise Job.DoesNotExist(f"the awaited job {job} is gone")


def _result(job: Job, ended: Job) -> Any:
    """Return the value of an ended job, or the exception that its end means."""
    from django_durable.results import value_of

    try:
        return value_of(job, ended)
    except (JobFailed, JobCancelled) as error:
        return error


def _refuse_ancestors(context: JobContext, ids: Sequence[UUID]) -> None:
    from django_durable.models import Job

    above: UUID | None = context.right[0]
    while above is not None:
        if above in ids:
            raise DurableError(f"a job can't wait for itself or what it belongs to: {above}")
        above = Job.all_objects.filter(pk=above).values_list("parent_id", flat=True).first()
