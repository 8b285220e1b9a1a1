"""Durations and rates as people write and read them."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import NamedTuple

_UNITS = {
    "s": timedelta(seconds=1),
    "m": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
}
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?|\.[0-9]+)([smhd]?)")
_RATE = re.compile(r"([0-9]+)/([smhd])")
MAX_RATE = 2**31 - 1


class Rate(NamedTuple):
    """Say that at most `limit` things may happen in any window of this length."""

    limit: int
    window: timedelta


def parse_duration(value: object) -> timedelta:
    """Return the timedelta for `30s`, `5m`, `2h`, `1d`, or a number of seconds as text or number.

    Raise ValueError, with a sentence for the person who wrote it, for anything else: negative,
    not finite, too long for a timedelta.
    """
    number: float
    if isinstance(value, str):
        match = _DURATION.fullmatch(value.strip())
        if match is None:
            raise ValueError(_no_duration(value))
        number, unit = float(match[1]), _UNITS[match[2] or "s"]
    elif isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(_no_duration(value))
    else:
        number, unit = value, _UNITS["s"]
    try:
        duration = number * unit
    except (OverflowError, ValueError):
        raise ValueError(_no_duration(value)) from None
    if duration < timedelta(0):
        raise ValueError(_no_duration(value))
    return duration


def _no_duration(value: object) -> str:
    return (
        f"{str(value)[:50]!r} is not a duration: write seconds, or a number with s, m, h or d,"
        " such as 30s, 5m, 2h"
    )


def parse_rate(text: object) -> Rate:
    """Return the limit and the window of a rate such as `100/m` (s, m, h or d).

    Raise ValueError for anything else, a limit of 0 included.
    """
    match = _RATE.fullmatch(text) if isinstance(text, str) and len(text) <= 20 else None
    limit = int(match[1]) if match else 0
    if match is None or not 1 <= limit <= MAX_RATE:
        raise ValueError(
            f"{str(text)[:50]!r} is not a rate: write a whole number from 1 on, a slash and"
            " s, m, h or d, such as 100/m"
        )
    return Rate(limit, _UNITS[match[2]])


def format_duration(duration: timedelta) -> str:
    """Return a short text for people: the two largest units, such as `1 h 5 m` or `340 ms`."""
    if duration < timedelta(0):
        return f"-{format_duration(-duration)}"
    total = duration.total_seconds()
    if 0 < total < 1:
        return f"{max(1, round(total * 1000))} ms" if total < 0.9995 else "1 s"
    if total < 9.95:
        return f"{total:.1f}".removesuffix(".0") + " s"
    days, rest = divmod(round(total), 86400)
    hours, rest = divmod(rest, 3600)
    minutes, seconds = divmod(rest, 60)
    units = [(days, "d"), (hours, "h"), (minutes, "m"), (seconds, "s")]
    first = next(place for place, (number, _) in enumerate(units) if number)
    return " ".join(f"{number} {unit}" for number, unit in units[first : first + 2] if number)


def seconds(value: object) -> float | None:
    """Return what a `timeout=` says in seconds; None stays None, without an end.

    Raise TypeError for another type and ValueError for what is negative, not finite or too long
    for a timedelta.
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (timedelta, int, float)):
        raise TypeError(
            f"a timeout is a number of seconds, a timedelta or None, not {type(value).__name__}"
        )
    number = value.total_seconds() if isinstance(value, timedelta) else value
    if not 0 <= number <= timedelta.max.total_seconds():
        raise ValueError(f"a timeout must be from 0 on and finite: {value!s:.100}")
    return float(number)
