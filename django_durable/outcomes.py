"""What the run of a claim can come to; the recorder turns each into a write of the store."""

from __future__ import annotations

from dataclasses import astuple, dataclass, fields
from datetime import timedelta
from typing import Any

from django_durable.errortext import ErrorText
from django_durable.store import Failure, Right, Success


@dataclass(frozen=True, slots=True)
class Rejected:
    """Say that this worker did not want the job, or that the job rejected itself."""

    right: Right
    delay: timedelta
    why: str = ""


@dataclass(frozen=True, slots=True)
class Abandoned:
    """Say that the claim is lost: there is nothing to write."""

    right: Right


@dataclass(frozen=True, slots=True)
class ParkedRun:
    """Say that the run has parked its job: there is nothing more to write."""

    right: Right


@dataclass(frozen=True, slots=True)
class GivenBack:
    """Say that the function was not called, for want of what this worker can't have just now."""

    right: Right
    why: str


Outcome = Success | Failure | Rejected | Abandoned | ParkedRun | GivenBack


_KINDS: dict[str, type[Outcome]] = {
    kind.__name__: kind for kind in (Success, Failure, Rejected, Abandoned, ParkedRun, GivenBack)
}


def outcome_to_tuple(outcome: Outcome) -> tuple[Any, ...]:
    """Write an outcome down in types that the payload codec keeps, to pass to another process."""
    each = (
        outcome
        if isinstance(outcome, Success)
        else (getattr(outcome, field.name) for field in fields(outcome))
    )
    values = tuple(astuple(value) if isinstance(value, ErrorText) else value for value in each)
    return (type(outcome).__name__, *values)


def outcome_from_tuple(written: tuple[Any, ...]) -> Outcome:
    """Read what `outcome_to_tuple` wrote."""
    name, *values = written
    kind = _KINDS[name]
    if kind is Failure:
        values[1] = ErrorText(*values[1])
    return kind(*values)
