"""One claimed job, from claim to outcome. No transaction is open around user code."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from asgiref.sync import sync_to_async

from django_durable import faults, payloads
from django_durable.backoff import Backoff
from django_durable.choices import UNDO, AttemptOutcome, DeathReason
from django_durable.conf import conf
from django_durable.errortext import ErrorText
from django_durable.exceptions import (
    CancelJob,
    CancelRequested,
    ClaimLost,
    PayloadDecodeError,
    PayloadError,
    RejectJob,
    RetryJob,
    RunParked,
    RunTimedOut,
    StopRun,
    checked_delay,
)
from django_durable.excursions import in_thread, until_done
from django_durable.groups import decisive
from django_durable.jobtypes import JobType, Unset
from django_durable.outcomes import Abandoned, Outcome, ParkedRun, Rejected
from django_durable.store import Claim, Failure, Right, Success
from django_durable.undoing import undo

if TYPE_CHECKING:
    from django_durable.context import JobContext

FIRST_REJECTION = timedelta(seconds=1)
LONGEST_REJECTION = timedelta(minutes=1)


def timeout_of(stored: Mapping[str, Any], job_type: JobType) -> timedelta | None:
    """Return the timeout of a job: its own, or that of its type."""
    if "timeout" in stored:
        own = stored["timeout"]
        return None if own is None else timedelta(seconds=own)
    return job_type.options.timeout


def execute(context: JobContext) -> Outcome:
    """Run a plain function in this thread and say what it came to; raises nothing."""
    try:
        call = _prepare(context)
        if not _is_accepted(context):
            return _rejected(context)
        if not context.options.takes_context:
            return _succeeded(context, call())
        with context.running():
            return _succeeded(context, call())
    except BaseException as error:  # noqa: BLE001 - whatever a job raises is its outcome
        return judge(context, error)


async def aexecute(context: JobContext, patience: float | None = None) -> Outcome:
    """Run an async function on this loop and say what it came to; raises nothing.

    No step of it is under way any more then. What else it has left in its thread is waited for,
    with `patience` so many seconds: for a process that ends then.
    """
    try:
        call = _prepare(context)
        if context.options.accept is not None and not await in_thread(_is_accepted)(context):
            return _rejected(context)
        if not context.options.takes_context:
            return _succeeded(context, await call())
        if not context.journal.is_at_hand:
            # Here, since on the loop nobody may ask the database, be it for `context.logger`.
            await sync_to_async(context.journal.load)()
        with context.running():
            context.under_way.begin()
            try:
                end = functools.partial(_succeeded, context, await call())
            except BaseException as error:  # noqa: BLE001 - as below
                end = functools.partial(judge, context, error)
            # No branch that the run leaves behind comes to another verb.
            context.stop(StopRun("the run has ended"))
            await context.under_way.end()
            await _leave_verbs(context, patience)
            return end()
    except BaseException as error:  # noqa: BLE001 - whatever a job raises is its outcome
        return judge(context, error)


async def _leave_verbs(context: JobContext, patience: float | None) -> None:
    """Wait until no verb of an async run is at work any more, also when cancelled meanwhile.

    One may be parking the run for a task that has been cancelled: only then is known whether the
    run has parked or come to its end.
    """
    if not context.has_begun:
        return
    # The verbs of a run take turns in one thread.
    left = asyncio.ensure_future(sync_to_async(int)())
    if patience is not None:
        await until_done(asyncio.ensure_future(asyncio.wait({left}, timeout=patience)))
        if not context.is_parked:
            return
    await until_done(left)


def _prepare(context: JobContext) -> functools.partial[Any]:
    faults.reach("after_claim")
    claim, options = context.claim, context.options
    args = payloads.decode(claim.args) if claim.args != "[]" else []
    kwargs = payloads.decode(claim.kwargs) if claim.kwargs != "{}" else {}
    if not (isinstance(args, list) and isinstance(kwargs, dict)):
        raise PayloadDecodeError("the arguments are no list and dict")
    if UNDO in claim.metadata:
        return functools.partial(undo, context)
    if options.takes_context:
        return functools.partial(context.job_type.func, context, *args, **kwargs)
    return functools.partial(context.job_type.func, *args, **kwargs)


def _is_accepted(context: JobContext) -> bool:
    accept = context.options.accept
    return accept is None or bool(accept(context.job))


def _rejected(context: JobContext) -> Rejected:
    return Rejected(context.right, rejection_delay(context.claim), "its accept said no")


def _succeeded(context: JobContext, value: Any) -> Outcome:
    if context.is_parked:
        # The function caught what ended its run; it runs again when the wait is over.
        return ParkedRun(context.right)
    keep = context.options.keep_completed
    try:
        text = payloads.encode(value, where="the result", limit=conf.max_payload)
    except PayloadError as error:
        return permanent(context, ErrorText.from_exception(error), DeathReason.UNSTORABLE)
    return Success(context.right, text, conf.keep_completed if isinstance(keep, Unset) else keep)


def permanent(
    context: JobContext, error: ErrorText, reason: DeathReason = DeathReason.PERMANENT
) -> Failure:
    """Return the outcome of an error that no further attempt can mend."""
    return Failure(context.right, error, retryable=False, reason=reason)


def retry(
    context: JobContext,
    error: ErrorText,
    *,
    delay: timedelta | None = None,
    outcome: AttemptOutcome = AttemptOutcome.FAILED,
) -> Failure:
    """Return the outcome of an error after which the job is tried again, if attempts are left."""
    if delay is None:
        claim = context.claim
        delay = backoff_of(claim.options, context.job_type).delay(max(claim.attempt, 1))
    return Failure(context.right, error, outcome=outcome, delay=delay)


def timed_out(context: JobContext) -> Failure:
    """Return the outcome of a run that overran its timeout; retried whatever `retry_on` says."""
    claim = context.claim
    return timed_out_run(context.right, claim.options, claim.attempt, context.job_type)


def timed_out_run(
    right: Right, stored: Mapping[str, Any], attempt: int, job_type: JobType
) -> Failure:
    """Do what `timed_out` does from what is stored, for a run in a process that does not answer."""
    limit = timeout_of(stored, job_type)
    text = "" if limit is None else f"overran its timeout of {limit.total_seconds():g} s"
    return Failure(
        right,
        ErrorText.of("JobTimeout", text),
        outcome=AttemptOutcome.TIMED_OUT,
        delay=backoff_of(stored, job_type).delay(max(attempt, 1)),
    )


def backoff_of(stored: Mapping[str, Any], job_type: JobType) -> Backoff:
    """Return the backoff of a job: its own, or that of its type."""
    own = stored.get("backoff")
    return Backoff.from_json(own) if own is not None else job_type.options.backoff


def rejection_delay(claim: Claim) -> timedelta:
    """Return how long a rejected job stays away: short at first, then longer each time."""
    return min(FIRST_REJECTION * float(2 ** min(claim.rejections, 20)), LONGEST_REJECTION)


def judge(context: JobContext, error: BaseException) -> Outcome:
    """Say what an exception means, by the table in the reference of outcomes; raises nothing."""
    try:
        return _judge(context, error)
    except BaseException as problem:  # noqa: BLE001 - an exception is users' code too
        return retry(context, ErrorText.from_exception(problem))


def _judge(context: JobContext, error: BaseException) -> Outcome:
    options = context.options
    whole, error = error, decisive(error, options)
    if isinstance(error, RunParked) or context.is_parked:
        return ParkedRun(context.right)
    if isinstance(error, ClaimLost | RunTimedOut):
        return Abandoned(context.right)
    if isinstance(error, CancelRequested) or (
        isinstance(error, asyncio.CancelledError) and context.cancel_requested
    ):
        return _cancelled(context, whole, "")
    if isinstance(error, RejectJob):
        # A subclass may have set what it liked.
        delay = checked_delay(error.delay)
        if delay is None:
            delay = rejection_delay(context.claim)
        return Rejected(context.right, delay, f"it raised {type(error).__name__}")
    text = ErrorText.from_exception(whole)
    if isinstance(error, CancelJob):
        return _cancelled(context, whole, error.reason)
    if isinstance(error, RetryJob):
        return retry(context, text, delay=checked_delay(error.delay))
    if isinstance(error, PayloadDecodeError):
        return permanent(context, text, DeathReason.UNDECODABLE)
    return retry(context, text) if options.mends(error) else permanent(context, text)


def _cancelled(context: JobContext, error: BaseException, reason: str) -> Failure:
    return Failure(
        context.right,
        ErrorText.from_exception(error),
        outcome=AttemptOutcome.CANCELLED,
        retryable=False,
        cancel=True,
        cancel_reason=reason,
    )


def right_of(claim: Claim) -> Right:
    """Return what every write for this claim is guarded by."""
    return (claim.id, claim.epoch)
