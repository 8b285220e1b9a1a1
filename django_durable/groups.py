"""Groups of exceptions, such as a `TaskGroup` raises: what they mean for a job or a step."""

from __future__ import annotations

from collections.abc import Iterator

from django_durable.exceptions import CancelJob, RejectJob, RetryJob, StopRun
from django_durable.jobtypes import Options


def decisive(error: BaseException, options: Options) -> BaseException:
    """Return which error of a group says what the group means; any other error says it itself.

    First comes what ends the run, then what no further attempt mends; a rejection comes last, since
    it counts no attempt. Options that name a class of groups mean the group as it is, and so does a
    group that says itself whether it may be mended.
    """
    if not isinstance(error, BaseExceptionGroup):
        return error
    stop = _stop_in(error)
    if stop is not None:
        return stop
    named = options.retry_on + options.give_up_on
    if _speaks(error) or any(issubclass(kind, BaseExceptionGroup) for kind in named):
        return error
    return min(_members(error), key=lambda member: _rank(member, options))


def _speaks(group: BaseException) -> bool:
    return isinstance(getattr(group, "retryable", None), bool)


def _stop_in(error: BaseException) -> StopRun | None:
    """Return what ended the run, if that is in a group; no word of the group changes it."""
    if isinstance(error, StopRun):
        return error
    if not isinstance(error, BaseExceptionGroup):
        return None
    return next(filter(None, map(_stop_in, error.exceptions)), None)


def _rank(error: BaseException, options: Options) -> int:
    if isinstance(error, CancelJob):
        return 0
    if isinstance(error, RetryJob):
        return 2
    if isinstance(error, RejectJob):
        return 4
    return 3 if options.mends(error) else 1


def _members(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup) and not _speaks(error):
        for part in error.exceptions:
            yield from _members(part)
    else:
        yield error
