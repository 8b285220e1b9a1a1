"""Every exception of the package; `django_durable` itself exports the public ones."""

# ruff: noqa: N818 - the names are public and say what happened

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from django_durable.backoff import LONGEST

if TYPE_CHECKING:
    from django_durable.models import DeadLetter, Job


class DurableError(Exception):
    """Be the base of the errors that the package reports.

    A job that lets one through is dead at once: another attempt would meet it again.
    """


class JobFailed(DurableError):
    """Say that the awaited job is dead, with the error it died of.

    `error_class`, `message` and `traceback` are texts (the job ran in another process), `job` and
    `dead_letter` the rows, None where they are not at hand.
    """

    def __init__(
        self,
        message: str = "",
        *,
        error_class: str = "",
        traceback: str = "",
        dead_letter: DeadLetter | None = None,
        job: Job | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.error_class = error_class
        self.traceback = traceback
        self.dead_letter = dead_letter
        self.job = job

    def __str__(self) -> str:
        return ": ".join(part for part in (self.error_class, self.message) if part)


class JobCancelled(DurableError):
    """Say that the awaited job was cancelled; `reason` is what its canceller said."""

    def __init__(self, reason: str = "", *, job: Job | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.job = job

    def __str__(self) -> str:
        return f"the job was cancelled: {self.reason}" if self.reason else "the job was cancelled"


class JobTimeout(DurableError):
    """Name the error of an attempt that overran its `timeout`."""


class SignalTimeout(DurableError):
    """Say that no signal came before the deadline; every replay says it again."""


class LeaseLost(DurableError):
    """Name the error of an attempt whose worker died or stopped answering."""


class AlreadyReplayed(DurableError):
    """Say that the dead letter has been replayed before; one record makes one new job."""


class DuplicateStep(DurableError):
    """Say that one run used a checkpoint name twice."""


class DepthExceeded(DurableError):
    """Say that a child would lie deeper than `DURABLE_MAX_DEPTH`; nothing was stored."""


class UnknownJob(DurableError):
    """Say that no job type of this name is registered in this process."""


class DuplicateJob(DurableError):
    """Say that the idempotency key is taken; `job` is the one that has it.

    Without a message of its own it names that job's state.
    """

    def __init__(self, message: str = "", *, job: Job | None = None) -> None:
        if not message and job is not None:
            message = (
                f"{job.name} has a job with idempotency key {job.idempotency_key!r} already;"
                f" it is {job.status} ({job.pk})"
            )
        super().__init__(message)
        self.job = job


class PayloadError(DurableError, TypeError):
    """Refuse a value that can't be stored without loss; the text names the argument."""


class PayloadDecodeError(DurableError, ValueError):
    """Say that a stored text is no payload, or names an Enum that this process can't import."""


class RetryJob(Exception):
    """Raise it in a job for another attempt, after `delay` or, with None, after the backoff.

    It counts as an attempt: the last one of `max_attempts` ends in a dead letter. A delay that is
    negative or over 100 years raises ValueError, one that is no timedelta TypeError.
    """

    def __init__(self, message: str = "", delay: timedelta | None = None) -> None:
        super().__init__(message, delay)
        self.message = message
        self.delay = checked_delay(delay)

    def __str__(self) -> str:
        return self.message


class PermanentFailure(Exception):
    """Raise it in a job when no further attempt can help: the job is dead at once."""


class RejectJob(Exception):
    """Raise it in a job that this worker can't serve now: another one gets it, no attempt counts.

    `delay` is how long it waits at least; None means a short delay that grows. One that is
    negative or over 100 years raises ValueError, one that is no timedelta TypeError.
    """

    def __init__(self, delay: timedelta | None = None) -> None:
        super().__init__(delay)
        self.delay = checked_delay(delay)

    def __str__(self) -> str:
        return "rejected" if self.delay is None else f"rejected for {self.delay}"


class CancelJob(Exception):
    """Raise it in a job to end it as CANCELLED, with no dead letter and no retry."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


class StopRun(BaseException):
    """End a run from inside; `except Exception` does not see it and `finally` blocks run."""


class CancelRequested(StopRun):
    """End the run of a job that somebody asked to cancel."""


class RunTimedOut(StopRun):
    """End a run that has overrun its `timeout`; its attempt is recorded already."""


class RunParked(StopRun):
    """End a run whose job is parked, to be run again when what it waits for has come."""


class ClaimLost(StopRun):
    """End a run whose job another claim, a rescue or an operator has taken."""


def checked_delay(delay: timedelta | None) -> timedelta | None:
    """Return the delay; raise TypeError or ValueError for what no job can be put off for."""
    if delay is None:
        return None
    if not isinstance(delay, timedelta):
        raise TypeError(f"delay must be a timedelta or None, not {type(delay).__name__}")
    if delay < timedelta(0):
        raise ValueError(f"delay must not be negative: {delay}")
    if delay > LONGEST:
        raise ValueError(f"delay must be at most {LONGEST.days} days: {delay}")
    return delay
