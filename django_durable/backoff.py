"""The wait between the attempts of a job."""

from __future__ import annotations

import random as _random
import sys
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

# Far beyond any use, and small enough that no moment from now on leaves the range of timestamps.
LONGEST = timedelta(days=36500)


@dataclass(frozen=True)
class Backoff:
    """Say how long a job waits after its attempt number n fails.

    `initial` x `factor` ^ (n - 1), at most `maximum`, then up to the share `jitter` more or less by
    chance, so that jobs that failed together don't come back together. Raise ValueError for a
    negative duration or one over 100 years, a factor below 1 or a jitter outside 0..1, and
    TypeError for a duration that is no timedelta.
    """

    initial: timedelta = timedelta(seconds=2)
    factor: float = 2.0
    maximum: timedelta = timedelta(hours=1)
    jitter: float = 0.1

    def __post_init__(self) -> None:
        for name in ("initial", "maximum"):
            duration = getattr(self, name)
            if not isinstance(duration, timedelta):
                raise TypeError(f"{name} must be a timedelta, not {type(duration).__name__}")
            if not timedelta(0) <= duration <= LONGEST:
                raise ValueError(f"{name} must be from 0 to {LONGEST.days} days: {duration}")
        if not 1 <= self.factor <= sys.float_info.max:
            raise ValueError(f"factor must be a finite number from 1 on: {self.factor}")
        if not 0 <= self.jitter <= 1:
            raise ValueError(f"jitter must be a number from 0 to 1: {self.jitter}")

    def delay(self, attempt: int, random: Callable[[], float] = _random.random) -> timedelta:
        """Return the wait after the given attempt, counted from 1.

        `random` gives a number from 0 to 1. Raise ValueError for an attempt below 1.
        """
        if attempt < 1:
            raise ValueError(f"attempts are counted from 1: {attempt}")
        initial, maximum = self.initial.total_seconds(), self.maximum.total_seconds()
        try:
            wait = min(initial * float(self.factor) ** (attempt - 1), maximum)
        except OverflowError:
            wait = maximum if initial else 0.0
        return timedelta(seconds=wait * (1 + self.jitter * (2 * random() - 1)))

    def to_json(self) -> dict[str, float]:
        """Return the four numbers, durations in seconds, in a form that JSON keeps."""
        return {
            "initial": self.initial.total_seconds(),
            "factor": float(self.factor),
            "maximum": self.maximum.total_seconds(),
            "jitter": float(self.jitter),
        }

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Backoff:
        """Return what `to_json` wrote down; raise ValueError if it is anything else."""
        try:
            numbers = {field.name: float(stored[field.name]) for field in fields(cls)}
            return cls(
                initial=timedelta(seconds=numbers["initial"]),
                factor=numbers["factor"],
                maximum=timedelta(seconds=numbers["maximum"]),
                jitter=numbers["jitter"],
            )
        except (KeyError, TypeError, OverflowError, ValueError) as error:
            raise ValueError(f"not a stored backoff: {error!r}") from error
