"""Durable jobs and workflows for Django, on the PostgreSQL that the project already has."""

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
    "workflow",
]
