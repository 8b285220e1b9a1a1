"""Receivers of the package's Django signals that note what they are sent."""

from typing import Any

from django_durable import signals
from django_durable.models import Job, Step
from tests.workerapp.notes import Notes

NAMES = (
    "job_enqueued",
    "job_started",
    "job_succeeded",
    "job_failed",
    "job_dead_lettered",
    "job_cancelled",
    "lease_lost",
    "step_recorded",
)


def note_signals(folder: str) -> None:
    """Note each signal that is sent in this process."""
    notes = Notes(folder)
    for name in NAMES:
        getattr(signals, name).connect(_receiver(notes, name), weak=False)


def _receiver(notes: Notes, name: str) -> Any:
    def receive(sender: type[Job], signal: Any, job: Job, **named: Any) -> None:
        told = {key: _told(value) for key, value in named.items()}
        notes.add(name, sender=sender.__name__, job=str(job.pk), status=job.status, **told)
        if "raise" in job.metadata:
            # What a receiver raises is its own affair.
            raise SystemExit(3) if job.metadata["raise"] == "SystemExit" else ValueError("receiver")

    return receive


def _told(value: Any) -> Any:
    if value is None or isinstance(value, int | float | str):
        return value
    if isinstance(value, Step):
        return {"kind": value.kind, "name": value.name, "status": value.status}
    reason = getattr(value, "reason", None)
    return reason if reason is not None else {"class": value.error_class, "message": value.message}
