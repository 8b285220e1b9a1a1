"""Groups of exceptions, such as a `TaskGroup` raises: what they mean for a job or a step."""

from __future__ import annotations

from collections.abc import Iterator

from django_durable.exceptions import CancelJob, RejectJob, RetryJob, StopRun
from django_durable.jobtypes import Options


def decisive(error: BaseException, options: Options) -> BaseException:
    """Return which error of a group says what the group means; any other error says it itself.

    First comes what ends the run, then what no further attempt mends; a rejection comes last, since
    it counts no attempt. Options that name a class of groups mean the group as it is.
    """
    if not isinstance(error, BaseExceptionGroup):
        return error
    if any(issubclass(kind, BaseExceptionGroup) for kind in options.retry_on + options.give_up_on):
        return error
    return min(_members(error), key=lambda member: _rank(member, options))


def _rank(error: BaseException, options: Options) -> int:
    if isinstance(error, StopRun):
        return 0
    if isinstance(error, CancelJob):
        return 1
    if isinstance(error, RetryJob):
        return 3
    if isinstance(error, RejectJob):
        return 5
    return 4 if options.mends(error) else 2


def _members(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for part in error.exceptions:
            yield from _members(part)
    else:
        yield error
