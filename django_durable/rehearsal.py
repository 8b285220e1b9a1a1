"""Rehearsals: stored histories run against today's code, to find what a deploy would break.

Nothing is called but the workflow function itself: a recorded checkpoint answers, and the first
verb that is not recorded ends the rehearsal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID

from asgiref.sync import async_to_sync, sync_to_async
from django.db import InternalError, transaction

from django_durable import payloads, store
from django_durable.choices import FINISHED, JobStatus, StepKind, StepStatus
from django_durable.context import JobContext
from django_durable.exceptions import StopRun
from django_durable.fields import Undecodable
from django_durable.jobtypes import JobType, registry
from django_durable.journal import Known
from django_durable.models import Job, Step
from django_durable.store import Checkpoint, Claim, Written
from django_durable.waiting import results_of

if TYPE_CHECKING:
    from django_durable.querysets import JobQuerySet


# What PostgreSQL says to a write where none may be.
READ_ONLY_TRANSACTION = "25006"


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
    """Answer verbs from what is recorded, and from nothing else."""

    def __init__(self, claim: Claim, job_type: JobType) -> None:
        super().__init__(claim, job_type, None)
        self.order: list[tuple[str, str]] = []
        self.ended_at = ""
        self.refused_write = ""

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
        known = super().enter(kind, name)
        if known is None and kind is StepKind.PATCH and self.journal.has_later():
            # What a run of this history would be told, and record.
            return Known(0, StepStatus.SUCCEEDED, False)
        if known is None or not known.is_final:
            self._end(f"{kind.value} {name!r}")
        self.order.append((kind.value, name))
        return known

    def gather(self, jobs: Iterable[Job], return_exceptions: bool = False) -> list[Any]:
        """Return the results of ended jobs, or end."""
        self.guard()
        wanted = list(jobs)
        ended = Job.all_objects.filter(pk__in=[job.pk for job in wanted], status__in=FINISHED)
        if ended.count() < len({job.pk for job in wanted}):
            self._end("a wait for jobs that have not ended")
        return results_of(wanted, return_exceptions=return_exceptions)

    async def agather(self, jobs: Iterable[Job], return_exceptions: bool = False) -> list[Any]:
        """Do what `gather` does, from async code."""
        answers: list[Any] = await sync_to_async(self.gather)(jobs, return_exceptions)
        return answers

    def progress(self, done: float, total: float | None = None, message: str = "") -> None:
        """Show nothing."""

    def check_cancelled(self) -> None:
        """Go on."""

    def record(self, *checkpoints: Checkpoint) -> Written:
        """Record nothing: whoever comes here is past what is recorded."""
        raise EndOfHistory

    def _end(self, what: str) -> None:
        self.ended_at = what
        self.stop(EndOfHistory())
        self.raise_if_stopped()


def check_histories(jobs: JobQuerySet) -> tuple[int, list[Finding]]:
    """Rehearse the histories of the given workflows; return how many, and what was found.

    Runs in a READ ONLY transaction that is rolled back.
    """
    findings: list[Finding] = []
    count = 0
    db = store.connection()
    with transaction.atomic(using=db.alias):
        with db.cursor() as cursor:
            cursor.execute("SET TRANSACTION READ ONLY")
        for job in jobs.filter(steps__isnull=False, metadata__undo__isnull=True).distinct():
            job_type = registry.find(job.name)
            if job_type is not None and job_type.options.takes_context:
                count += 1
                findings += _check(job, job_type)
        transaction.set_rollback(True, using=db.alias)
    return count, findings


def _check(job: Job, job_type: JobType) -> list[Finding]:
    recorded: list[Step] = list(job.steps.order_by("ordinal").defer("value", "undo_call"))

    def finding(problem: str, kind: str, step: str, text: str) -> Finding:
        return Finding(job.pk, job.name, problem, kind, step, text)

    if isinstance(job.args, Undecodable) or isinstance(job.kwargs, Undecodable):
        return [finding("undecodable", "", "", "its arguments can't be decoded")]
    # A savepoint, for what the function may do to the transaction; it is there before the context,
    # which refuses verbs in what the function opens.
    with transaction.atomic(using=store.connection().alias):
        rehearsal = Rehearsal(_claim_of(job), job_type)
        with store.connection().execute_wrapper(rehearsal.watch):
            problem = _run(rehearsal, job)
        transaction.set_rollback(True, using=store.connection().alias)
    if rehearsal.refused_write:
        text = (
            "the function writes to the database outside a step, which a resumed run does again;"
            f" its history is checked no further: {rehearsal.refused_write}"
        )
        return [finding("write", "", "", text)]
    findings = [] if problem is None else [finding("error", "", "", problem)]
    reached = set(rehearsal.order)
    names = {step for _kind, step in reached}
    stopped = f"; the run came to {rehearsal.ended_at} first" if rehearsal.ended_at else ""
    for step in recorded:
        if (step.kind, step.name) in reached or rehearsal.ended_at == f"{step.kind} {step.name!r}":
            continue
        ended_at_name = rehearsal.ended_at.endswith(f" {step.name!r}")
        if step.status == Step.Status.PENDING and rehearsal.ended_at and not ended_at_name:
            # It may come yet, as what is new always may.
            continue
        if step.name in names or ended_at_name:
            text = f"{step.name!r} is recorded as {step.kind}, and now of another kind"
            findings.append(finding("other_kind", step.kind, step.name, text))
        else:
            text = f"{step.kind} {step.name!r} is recorded, and not reached any more{stopped}"
            findings.append(finding("not_reached", step.kind, step.name, text))
    return findings + _disorder(rehearsal.order, recorded, finding)


def _disorder(
    order: Sequence[tuple[str, str]], recorded: Sequence[Step], finding: Callable[..., Finding]
) -> list[Finding]:
    ordinals = {(step.kind, step.name): step.ordinal for step in recorded}
    findings, last = [], 0
    for kind, name in order:
        ordinal = ordinals[(kind, name)]
        if ordinal < last:
            text = f"{kind} {name!r} is now reached after what it was recorded before"
            findings.append(finding("other_order", kind, name, text))
        last = max(last, ordinal)
    return findings


def _run(rehearsal: Rehearsal, job: Job) -> str | None:
    """Run the function; return what went wrong beyond what its own history explains."""
    job_type, args, kwargs = rehearsal.job_type, job.args, job.kwargs
    try:
        with rehearsal.running():
            if job_type.is_async:
                async_to_sync(job_type.func)(rehearsal, *args, **kwargs)
            else:
                job_type.func(rehearsal, *args, **kwargs)
    except StopRun:
        return None
    except Exception as error:  # noqa: BLE001 - users' code
        # A history that ended in an error ends in it again; one that broke off elsewhere did not.
        if job.status in (JobStatus.DEAD, JobStatus.CANCELLED):
            return None
        return f"{type(error).__name__}: {error}"
    return None


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
