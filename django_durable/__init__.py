"""Durable jobs and workflows for Django, on the PostgreSQL that the project already has."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from django_durable.backoff import Backoff
from django_durable.choices import OnDuplicate, Priority
from django_durable.exceptions import (
    AlreadyReplayed,
    CancelJob,
    CancelRequested,
    DepthExceeded,
    DuplicateJob,
    DuplicateStep,
    DurableError,
    JobCancelled,
    JobFailed,
    JobTimeout,
    LeaseLost,
    PayloadError,
    PermanentFailure,
    RejectJob,
    RetryJob,
    SignalTimeout,
    StopRun,
    UnknownJob,
)
from django_durable.jobtypes import job, workflow
from django_durable.step_policy import step

if TYPE_CHECKING:
    from django_durable.context import JobContext
    from django_durable.schedules import schedule

__version__ = "0.1.0"

__all__ = [
    "AlreadyReplayed",
    "Backoff",
    "CancelJob",
    "CancelRequested",
    "DepthExceeded",
    "DuplicateJob",
    "DuplicateStep",
    "DurableError",
    "JobCancelled",
    "JobContext",
    "JobFailed",
    "JobTimeout",
    "LeaseLost",
    "OnDuplicate",
    "PayloadError",
    "PermanentFailure",
    "Priority",
    "RejectJob",
    "RetryJob",
    "SignalTimeout",
    "StopRun",
    "UnknownJob",
    "job",
    "schedule",
    "step",
    "workflow",
]


def __getattr__(name: str) -> Any:
    # Who defines and enqueues jobs needs nothing of what runs them. By its name, since every module
    # of the package imports this one, and most lie below the context.
    if name == "JobContext":
        return import_module("django_durable.context").JobContext
    if name == "schedule":
        return import_module("django_durable.schedules").schedule
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
