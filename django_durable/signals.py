"""Django signals of the package: sender `Job`, sent robustly after the commit that they report.

They are sent once as a rule, not at all after a kill at the wrong moment, and seldom twice:
receivers go by `job.id`.
"""

from __future__ import annotations

import logging
from typing import Any

from django.dispatch import Signal

job_enqueued = Signal()  # job; only when this call made it
job_started = Signal()  # job, attempt
job_succeeded = Signal()  # job, attempt, waited, took (seconds)
job_failed = Signal()  # job, attempt, error, will_retry, waited, took
job_dead_lettered = Signal()  # job, dead_letter
job_cancelled = Signal()  # job, reason
job_parked = Signal()  # job, attempt
lease_lost = Signal()  # job, attempt

logger = logging.getLogger("django_durable")


def send(signal: Signal, **named: Any) -> None:
    """Send a signal so that no receiver can break the sender; log what went wrong."""
    from django_durable.models import Job

    for receiver, answer in signal.send_robust(sender=Job, **named):
        if isinstance(answer, Exception):
            logger.error("The signal receiver %r failed", receiver, exc_info=answer)
