"""Children: jobs that a workflow starts as checkpoints of its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django_durable import store
from django_durable.choices import StepKind, StepStatus
from django_durable.conf import conf
from django_durable.exceptions import DepthExceeded, DuplicateJob
from django_durable.jobtypes import Call, JobType
from django_durable.journal import Known
from django_durable.steps import in_transaction
from django_durable.store import Checkpoint

if TYPE_CHECKING:
    from django_durable.context import JobContext
    from django_durable.models import Job

Entry = tuple[Call, Sequence[Any], Mapping[str, Any]]


def start_many(
    context: JobContext,
    names: Sequence[str],
    calls: Sequence[tuple[Call, Sequence[Any], Mapping[str, Any]]],
) -> list[Job]:
    """Make or re-attach the named children, in order, in one commit."""
    from django_durable.enqueueing import announce, new_job
    from django_durable.models import Job

    known = [context.enter(StepKind.CHILD, name) for name in names]
    missing = [place for place, found in enumerate(known) if found is None]
    made: set[UUID | None] = set()
    if missing:
        if context.claim.depth + 1 > conf.max_depth:
            raise DepthExceeded(
                f"a child of {context.job} would lie deeper than DURABLE_MAX_DEPTH,"
                f" which is {conf.max_depth}"
            )
        news = [new_job(*calls[place]) for place in missing]
        # No deadlock with another job that takes the same keys in its own order ends the run.
        wanted = [names[place] for place in missing]
        births = context.insist(
            lambda: in_transaction(context, lambda: _bear(context, wanted, news)),
            lambda: _born_all_the_same(context, wanted),
        )
        for place, child in zip(missing, births, strict=True):
            known[place] = child.known
            context.journal.keep(StepKind.CHILD, names[place], child.known)
        made = {child.known.child for child in births if child.created}
    ids = [each.child for each in known if each is not None]
    found = context.ask(lambda: list(Job.all_objects.filter(pk__in=ids)), len(ids))
    jobs = {job.pk: job for job in found}
    for pk, job in jobs.items():
        job.created = pk in made
    if made:
        announce(store.connection(), [job for job in jobs.values() if job.created])
    return [_found(jobs, job) for job in ids]


def _born_all_the_same(context: JobContext, names: Sequence[str]) -> list[Birth] | None:
    """Return the births of a commit whose answer was lost; None if it did not come about."""
    from django_durable.models import Job

    if context.reread(StepKind.CHILD, names[0]) is None:
        return None
    found = [context.journal.load()[StepKind.CHILD.value, name] for name in names]
    own = Job.all_objects.filter(pk__in=[known.child for known in found], parent=context.right[0])
    born = context.ask(lambda: set(own.values_list("pk", flat=True)), len(found))
    return [Birth(known, known.child in born) for known in found]


def _found(jobs: dict[UUID, Job], job: UUID | None) -> Job:
    from django_durable.models import Job

    if job is None or job not in jobs:
        raise Job.DoesNotExist(f"the child {job} is gone")
    return jobs[job]


@dataclass(frozen=True)
class Birth:
    """Be the checkpoint of a child, and say whether it was born for it or had been there."""

    known: Known
    created: bool


def _bear(context: JobContext, names: Sequence[str], news: Sequence[store.NewJob]) -> list[Birth]:
    claim = context.claim
    born = store.bear_many(
        store.connection(), news, parent=claim.id, root=claim.root_id, epoch=claim.epoch
    )
    births = []
    for new, child in zip(news, born, strict=True):
        created = child is not None
        if child is None:
            child, created = _other_than_born(context, new)
        ordinal = context.journal.next_ordinal()
        births.append(Birth(Known(ordinal, StepStatus.SUCCEEDED, child=child), created))
    context.record(
        *(_checkpoint(context, name, each.known) for name, each in zip(names, births, strict=True))
    )
    return births


def _checkpoint(context: JobContext, name: str, known: Known) -> Checkpoint:
    return Checkpoint(
        context.right, StepKind.CHILD, name, known.ordinal, known.status, child=known.child
    )


def _other_than_born(context: JobContext, new: store.NewJob) -> tuple[UUID, bool]:
    """Return the job that a call comes to whose key is taken, and whether it is new.

    Ends the run instead if it may bear no children at all. Raises `DuplicateJob`.
    """
    from django_durable.models import Job

    context.lock()
    claim = context.claim
    settled = store.bear_over_key(
        store.connection(), new, parent=claim.id, root=claim.root_id, epoch=claim.epoch
    )
    if settled.refused:
        raise DuplicateJob(job=Job.all_objects.get(pk=settled.id))
    return settled.id, settled.created


def as_call(job_type: JobType | Call) -> Call:
    """Return the call that a verb was given, with or without `using`; `TypeError` for no such."""
    if isinstance(job_type, Call):
        return job_type
    if not isinstance(job_type, JobType):
        raise TypeError(f"a child is a job type or job_type.using(...), not {job_type!r:.100}")
    return job_type.using()


def numbered(
    name: str, job_type: JobType | Call, calls: Iterable[Sequence[Any]]
) -> tuple[list[str], list[Entry]]:
    """Return names `name-0`, `name-1`, ... and the calls that belong to them."""
    from django_durable.enqueueing import one_call

    call = as_call(job_type)
    split = [one_call(call, entry) for entry in calls]
    return [f"{name}-{number}" for number in range(len(split))], split
