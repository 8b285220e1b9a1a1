"""What a job went through, from its rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.db.models import OuterRef, Subquery
from django.utils import timezone

from django_durable.choices import UNDO, AttemptOutcome, JobStatus, StepKind, StepStatus
from django_durable.models import Attempt, DeadLetter, Job, Step

if TYPE_CHECKING:
    from django_durable.querysets import JobQuerySet

# A history of more checkpoints is shown in part; the table of steps has all.
MOST_STEPS = 500

# How an attempt ended, as the verb of a sentence.
ENDINGS: dict[str, str] = {
    AttemptOutcome.FAILED: "failed",
    AttemptOutcome.TIMED_OUT: "timed out",
    AttemptOutcome.LOST: "was lost",
    AttemptOutcome.CANCELLED: "was cancelled",
}

# What waits for something that comes from outside of the run.
WAITS = frozenset({StepKind.SLEEP, StepKind.SIGNAL})
JOB_ENDINGS: dict[str, str] = {
    JobStatus.SUCCESSFUL: "succeeded",
    JobStatus.DEAD: "died",
    JobStatus.CANCELLED: "was cancelled",
}
# What is kept in the row of the job itself, but for its waits.
EVENTS = {
    "rejected": "rejected",
    "handed_back": "handed back",
    "run_now": "made due now",
}


@dataclass(frozen=True)
class Entry:
    """Hold one moment of a job's life: `event` for programs, `text` for people."""

    at: datetime
    event: str
    text: str


def shown_moment(at: datetime) -> str:
    """Return a moment for people, in the current time zone."""
    return f"{timezone.localtime(at):%Y-%m-%d %H:%M:%S %Z}"


def with_errors(jobs: JobQuerySet) -> JobQuerySet:
    """Annotate jobs with `last_error_class` and `last_message`.

    They are those of the latest attempt, None where it has not failed (or not ended).
    """
    latest = Attempt.objects.filter(job=OuterRef("pk"), number=OuterRef("attempt"))
    return jobs.annotate(
        last_error_class=Subquery(latest.values("error_class")),
        last_message=Subquery(latest.values("message")),
    )


def timeline(job: Job, limit: int = 100, *, messages: bool = True) -> list[Entry]:
    """Return what happened to the job, oldest first, with its last `limit` failed attempts.

    Without `messages`, the messages of errors are left out, but not their classes.
    """
    steps = list(job.steps.order_by("ordinal", "pk").defer("value", "undo_call")[:MOST_STEPS])
    entries = [
        *_birth(job),
        *_attempts(job, steps, limit, messages=messages),
        *chain.from_iterable(_step(job, step, messages=messages) for step in steps),
        *_others(job, steps),
        *_signals(job, steps),
        *_forks(job),
        *_end(job),
        *_undo(job),
    ]
    # The sort keeps the order of what happened at one moment.
    return sorted(entries, key=lambda entry: entry.at)


def _birth(job: Job) -> Iterator[Entry]:
    letter = DeadLetter.all_objects.filter(replayed_as=job.pk).first()
    source = ""
    if letter is not None:
        source = f" as the replay of {letter.job_id}"
    elif UNDO in job.metadata:
        source = f" to undo {job.metadata[UNDO]}"
    elif job.forked_from is not None:
        source = f" as a fork of {job.forked_from}"
    yield Entry(job.enqueued_at, "enqueued", f"enqueued{source}")


def _attempts(job: Job, steps: Sequence[Step], limit: int, *, messages: bool) -> Iterator[Entry]:
    failed = list(Attempt.objects.filter(job=job).order_by("-number")[: limit + 1])
    before = job.enqueued_at
    if len(failed) > limit:
        first = failed.pop()
        before = first.finished_at
        yield Entry(before, "omitted", f"attempt {first.number} and those before are left out")
    for attempt in reversed(failed):
        if attempt.started_at is not None:
            yield from _claims(
                job, steps, before, attempt.started_at, attempt.number, attempt.worker
            )
        before = attempt.finished_at
        error = _error(attempt, messages=messages)
        ending = f"attempt {attempt.number} {ENDINGS[attempt.outcome]}"
        yield Entry(before, attempt.outcome, f"{ending}: {error}" if error else ending)
    # The latest attempt has a row of its own only once it has failed.
    latest_failed = bool(failed) and failed[0].number == job.attempt
    if job.attempt and job.claimed_at is not None and not latest_failed:
        yield from _claims(
            job, steps, before, job.claimed_at, job.attempt, job.worker or "", is_latest=True
        )


def _claims(
    job: Job,
    steps: Sequence[Step],
    before: datetime,
    at: datetime,
    number: int,
    worker: str,
    *,
    is_latest: bool = False,
) -> Iterator[Entry]:
    """Tell of the last claim of an attempt, which alone is stored, and when the first one was.

    `before` is when the attempt before it ended. The first claim of the job is known, without its
    worker; that others went before shows in what they did.
    """
    by = _by_worker(worker)
    goes_on = (is_latest and job.resumed and job.status == JobStatus.RUNNING) or any(
        moment is not None and before < moment < at
        for step in steps
        for moment in (step.started_at, step.finished_at)
    )
    if number == 1 and job.started_at is not None and job.started_at < at:
        goes_on = True
        yield Entry(job.started_at, "started", f"attempt {number} taken")
    if goes_on:
        yield Entry(at, "resumed", f"attempt {number} resumed{by}")
    else:
        yield Entry(at, "started", f"attempt {number} taken{by}")


def _by_worker(worker: str | None) -> str:
    return f" by worker {worker}" if worker else ""


def _error(failed: Attempt | Step, *, messages: bool) -> str:
    parts = (failed.error_class, failed.message if messages else "")
    return ": ".join(part for part in parts if part)


def _step(job: Job, step: Step, *, messages: bool) -> Iterator[Entry]:
    what = f"{step.kind} {step.name!r}"
    if step.finished_at is not None and step.finished_at < job.enqueued_at:
        # A replay or a fork has it from the job that earned it, with its moments.
        earned = shown_moment(step.finished_at)
        yield Entry(job.enqueued_at, "step_copied", f"{what} copied, earned at {earned}")
        return
    if step.finished_at is None or (step.kind in WAITS and step.finished_at > step.started_at):
        until = f" until {shown_moment(step.wake_at)}" if step.wake_at else ""
        yield Entry(step.started_at, "waiting", f"{what} waits{until}")
    if step.finished_at is None:
        return
    if step.kind == StepKind.CHILD:
        child = f" (job {step.child_id})" if step.child_id else ""
        yield Entry(step.finished_at, "child_made", f"{what} made{child}")
        return
    took = (step.finished_at - step.started_at).total_seconds()
    error = _error(step, messages=messages)
    text = f"{what} {step.status} after {took:.3f} s"
    last = step.tries + (step.status == StepStatus.SUCCEEDED)
    if last > 1:
        # Of the last try alone nothing is stored.
        text = f"{what} {step.status} in try {last}, {took:.3f} s after the first began"
    yield Entry(step.finished_at, f"step_{step.status}", f"{text}: {error}" if error else text)


def _others(job: Job, steps: Sequence[Step]) -> Iterator[Entry]:
    """Tell what is kept in the job's own row, and of the ends of the jobs that it waits for."""
    names = {step.child_id: f"child {step.name!r}" for step in steps if step.child_id is not None}
    children = frozenset(names)
    for event in job.events or []:
        awaited = [UUID(other) for other in event.get("jobs", ())]
        for other in awaited:
            names.setdefault(other, f"job {other}")
        if event["event"] == "handed_back" and "claimed_at" in event:
            # Of a claim that counts no attempt the row of the job soon knows nothing else.
            taken = datetime.fromisoformat(event["claimed_at"])
            yield Entry(taken, "started", f"taken{_by_worker(event.get('worker'))}")
        at = datetime.fromisoformat(event["at"])
        yield Entry(at, event["event"], _event(event, [names[other] for other in awaited]))
    ended = Job.all_objects.filter(pk__in=names, finished_at__isnull=False)
    for other in ended.order_by("finished_at", "pk").only("status", "finished_at"):
        if other.finished_at is not None:
            kind = "child_ended" if other.pk in children else "awaited_ended"
            # A copied child may have ended before there was this job.
            at = max(other.finished_at, job.enqueued_at)
            yield Entry(at, kind, f"{names[other.pk]} {JOB_ENDINGS[other.status]}")


def _event(event: dict[str, Any], awaited: Sequence[str]) -> str:
    if "step" in event:
        after = f"step {event['step']!r} failed in try {event['tries']}"
        return f"{after}: {event['error']}; waits for the next"
    if awaited:
        more = event["count"] - len(awaited)
        return f"waits for {', '.join(awaited)}" + (f" and {more} more" if more else "")
    by = f" by {event['by']}" if "by" in event else ""
    by = _by_worker(event.get("worker")) or by
    return f"{EVENTS[event['event']]}{by}"


def _signals(job: Job, steps: Sequence[Step]) -> Iterator[Entry]:
    answered = {
        step.name: step.finished_at
        for step in steps
        if step.kind == StepKind.SIGNAL and step.status == StepStatus.SUCCEEDED
    }
    for signal in job.signals.order_by("received_at").defer("payload")[:MOST_STEPS]:
        what = f"signal {signal.name!r}"
        if signal.received_at < job.enqueued_at:
            # As with a step that is copied.
            received = shown_moment(signal.received_at)
            yield Entry(job.enqueued_at, "signal_copied", f"{what} copied, received at {received}")
            continue
        answered_at = answered.get(signal.name)
        again = ""
        if answered_at is not None and answered_at < signal.received_at:
            # The row has lost the moment of the one that answered.
            again = " after its wait was answered; only the last receipt is kept"
        yield Entry(signal.received_at, "signal", f"{what} received{again}")


def _forks(job: Job) -> Iterator[Entry]:
    forks = Job.all_objects.filter(forked_from=job.pk).order_by("pk")
    for pk, at in forks.values_list("pk", "enqueued_at")[:MOST_STEPS]:
        yield Entry(at, "forked", f"forked as {pk}")


def _end(job: Job) -> Iterator[Entry]:
    if job.cancel_requested_at is not None and job.cancel_requested_at != job.finished_at:
        yield Entry(job.cancel_requested_at, "cancel_requested", "cancellation requested")
    letter: DeadLetter | None = job.dead_letter
    if job.finished_at is not None:
        yield Entry(job.finished_at, *_ending(job, letter))
    if letter is not None and letter.replayed_at is not None:
        new = letter.replayed_as_id or "a job that has been deleted"
        by = f" by {letter.replayed_by}" if letter.replayed_by else ""
        yield Entry(letter.replayed_at, "replayed", f"replayed as {new}{by}")


def _undo(job: Job) -> Iterator[Entry]:
    """Tell of the undo job, which only a dead or cancelled job has."""
    if job.status not in (JobStatus.DEAD, JobStatus.CANCELLED):
        return
    undos = Job.all_objects.filter(parent=job.pk, metadata__undo=str(job.pk)).order_by("pk")
    for undo in undos.only("status", "enqueued_at", "finished_at"):
        yield Entry(undo.enqueued_at, "undo_made", f"undo job {undo.pk} made")
        if undo.finished_at is not None:
            yield Entry(undo.finished_at, "undo_ended", f"undo job {JOB_ENDINGS[undo.status]}")


def _ending(job: Job, letter: DeadLetter | None) -> tuple[str, str]:
    if job.status == JobStatus.DEAD:
        reason = letter.get_reason_display() if letter else "its dead letter has been deleted"
        return "dead", f"dead: {reason}"
    if job.status == JobStatus.CANCELLED:
        return "cancelled", f"cancelled: {job.cancel_reason}" if job.cancel_reason else "cancelled"
    return "succeeded", "succeeded"
