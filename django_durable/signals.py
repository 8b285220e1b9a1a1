"""Django signals of the package: sender `Job`, sent robustly after the commit that they report.

They are sent once as a rule, not at all after a kill at the wrong moment, and seldom twice:
receivers go by `job.id`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from django.dispatch import Signal

from django_durable.errorlog import get_logger

if TYPE_CHECKING:
    from django_durable.models import Job, Step

CheckpointKey = tuple[str, str]

job_enqueued = Signal()  # job; only when this call made it
job_started = Signal()  # job, attempt
job_succeeded = Signal()  # job, attempt, waited, took (seconds)
job_failed = Signal()  # job, attempt, error, will_retry, waited, took
job_dead_lettered = Signal()  # job, dead_letter
job_cancelled = Signal()  # job, reason
job_parked = Signal()  # job, attempt
lease_lost = Signal()  # job, attempt
step_recorded = Signal()  # job, step; once its status is final

logger = get_logger("django_durable")


def send(signal: Signal, **named: Any) -> None:
    """Send a signal so that no receiver can break the sender; log what went wrong."""
    from django_durable.models import Job

    for receiver, answer in signal.send_robust(sender=Job, **named):
        if isinstance(answer, Exception):
            logger.error("The signal receiver %r failed", receiver, exc_info=answer)


def is_heard(signal: Signal) -> bool:
    """Tell whether somebody listens, so that what a signal tells need not be found for nobody."""
    from django_durable.models import Job

    # Mostly nobody does at all, which is known sooner.
    return bool(signal.receivers) and signal.has_listeners(Job)


def find_steps(job: Job, keys: Sequence[CheckpointKey]) -> list[Step]:
    """Return the checkpoints of a job of these kinds and names, in their order."""
    from django_durable.models import Step

    names = {name for _kind, name in keys}
    found = Step.objects.filter(job_id=job.pk, name__in=names).order_by("ordinal", "pk")
    steps = [step for step in found if (step.kind, step.name) in keys]
    for step in steps:
        step.job = job
    return steps
