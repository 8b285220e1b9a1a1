"""Children: jobs that a workflow starts as checkpoints of its own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django_durable import store
from django_durable.choices import OnDuplicate, StepKind, StepStatus
from django_durable.conf import conf
from django_durable.exceptions import DepthExceeded, DuplicateJob
from django_durable.jobtypes import Call, JobType
from django_durable.journal import Known
from django_durable.store import Checkpoint

if TYPE_CHECKING:
    from django_durable.context import JobContext
    from django_durable.models import Job

Entry = tuple[Call, Sequence[Any], dict[str, Any]]


def start_many(
    context: JobContext,
    names: Sequence[str],
    calls: Sequence[tuple[Call, Sequence[Any], dict[str, Any]]],
) -> list[Job]:
    """Make or re-attach the named children, in order, in one commit."""
    from django_durable.enqueueing import announce, new_job
    from django_durable.models import Job

    known = [context.enter(StepKind.CHILD, name) for name in names]
    missing = [place for place, found in enumerate(known) if found is None]
    if missing:
        if context.claim.depth + 1 > conf.max_depth:
            raise DepthExceeded(
                f"a child of {context.job} would lie deeper than DURABLE_MAX_DEPTH,"
                f" which is {conf.max_depth}"
            )
        news = [new_job(*calls[place]) for place in missing]
        born = _bear(context, [names[place] for place in missing], news)
        for place, child in zip(missing, born, strict=True):
            known[place] = child
    ids = [found.child for found in known if found is not None]
    jobs = {job.pk: job for job in Job.all_objects.filter(pk__in=ids)}
    made = {found.child for place, found in enumerate(known) if place in missing and found}
    for pk, job in jobs.items():
        job.created = pk in made and job.parent_id == context.right[0]
    if made:
        announce(store.connection(), [job for job in jobs.values() if job.created])
    return [_found(jobs, job) for job in ids]


def _found(jobs: dict[UUID, Job], job: UUID | None) -> Job:
    from django_durable.models import Job

    if job is None or job not in jobs:
        raise Job.DoesNotExist(f"the child {job} is gone")
    return jobs[job]


def _bear(context: JobContext, names: Sequence[str], news: Sequence[store.NewJob]) -> list[Known]:
    db = store.connection()
    claim = context.claim
    with store.transaction():
        born = store.bear_many(db, news, parent=claim.id, root=claim.root_id, epoch=claim.epoch)
        ids = [
            child if child is not None else _holder_of_key(context, new)
            for child, new in zip(born, news, strict=True)
        ]
        ordinals = [context.journal.next_ordinal() for _ in ids]
        children = [
            Known(ordinal, StepStatus.SUCCEEDED, child=child)
            for ordinal, child in zip(ordinals, ids, strict=True)
        ]
        context.record(
            *(
                _checkpoint(context, name, known)
                for name, known in zip(names, children, strict=True)
            )
        )
    for name, known in zip(names, children, strict=True):
        context.journal.keep(StepKind.CHILD, name, known)
    return children


def _checkpoint(context: JobContext, name: str, known: Known) -> Checkpoint:
    return Checkpoint(
        context.right, StepKind.CHILD, name, known.ordinal, known.status, child=known.child
    )


def _holder_of_key(context: JobContext, new: store.NewJob) -> UUID:
    """Return the job that has the child's key already; raise if the run may bear none at all."""
    from django_durable.models import Job

    context.lock()
    holder = Job.all_objects.filter(name=new.name, idempotency_key=new.idempotency_key).first()
    if new.idempotency_key is None or holder is None:
        raise AssertionError("a child was not born though its parent's claim stands")
    if new.on_duplicate in (OnDuplicate.NO_REUSE, OnDuplicate.ALLOW_REUSE_ON_FAILURE):
        raise DuplicateJob(job=holder)
    pk: UUID = holder.pk
    return pk


def as_call(job_type: JobType | Call) -> Call:
    """Return the call that a verb was given, with or without `using`."""
    return job_type if isinstance(job_type, Call) else job_type.using()


def numbered(
    name: str, job_type: JobType | Call, calls: Iterable[Sequence[Any]]
) -> tuple[list[str], list[Entry]]:
    """Return names `name-0`, `name-1`, ... and the calls that belong to them."""
    from django_durable.enqueueing import one_call

    call = as_call(job_type)
    split = [one_call(call, entry) for entry in calls]
    return [f"{name}-{number}" for number in range(len(split))], split
