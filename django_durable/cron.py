"""Cron expressions: what they say, and when that comes true in a time zone."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import cached_property, lru_cache
from itertools import pairwise
from zoneinfo import ZoneInfo

from croniter import CroniterError, croniter
from croniter.croniter import DOW_ALPHAS, M_ALPHAS

SECOND, MINUTE, DAY = timedelta(seconds=1), timedelta(minutes=1), timedelta(days=1)

SHORTCUTS = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_RANGE = r"(?P<low>[0-9]{1,2}|[a-z]{3})-(?P<high>[0-9]{1,2}|[a-z]{3})"
# What an entry of a list may look like; croniter knows what it may say in which field.
_ENTRY = re.compile(
    rf"(?:(?:\*|[0-9]{{1,2}}|[a-z]{{3}}|{_RANGE})(?P<step>/[0-9]{{1,2}})?"
    r"|\?|l|l[0-7]|(?:[0-7]|[a-z]{3})#[1-5])"
)
# A weekday of one week of the month.
_NTH = re.compile(r"l[0-7]|\w+#[1-5]")
_RANDOM = re.compile(r"[hr](\(.*\))?(/.*)?")
_NUMBERS = {**M_ALPHAS, **DOW_ALPHAS}
# How many minutes, hours, days, months and weekdays there are.
_SIZES = (60, 24, 31, 12, 7)
_WEEKS = range(1, 6)
# Days in which all that is named comes twice, a leap day of one weekday too, as ordinals.
_CALENDAR = (date(2000, 1, 1).toordinal(), date(2060, 1, 1).toordinal())
# In place of a day or a week of the month.
_LAST = 0


@dataclass(frozen=True)
class Cron:
    """Say when a cron expression comes true in a time zone.

    `expression` has five fields, or is one of `@hourly`, `@daily`, `@midnight`, `@weekly`,
    `@monthly`, `@yearly`, `@annually`; croniter reads it. A day matches by the month or by the
    week where both fields say something else than `*`. `timezone` is a name such as
    `Europe/Berlin`. Raise ValueError, with a sentence for the person who wrote it, for any other
    expression, for one that can never come true and for an unknown zone. Refused are also:
    seconds and years, random and hashed fields (`R`, `H`) and nearest weekdays (`W`); a range
    of one value (`5-5`); a step in a range that goes over the end of its field (`22-4/3`); a
    step wider than its field (`*/61`); `#` and `L` weekdays beside plain ones or beside days of
    the month.

    Where the clocks change, a skipped local time runs once, at the first moment after the gap,
    and a repeated one once, at its first occurrence. An expression whose minute or hour field
    starts with `*` goes by elapsed time instead: it runs whenever a clock on the wall shows a
    time that it names, twice for a repeated one and never for a skipped one.

    All moments are aware; those returned are in UTC.
    """

    expression: str
    timezone: str

    def __post_init__(self) -> None:
        for value in (self.expression, self.timezone):
            if not isinstance(value, str):
                raise ValueError(f"cron expressions and time zones are text, not {value!r:.50}")
        _read(self.expression)
        _zone(self.timezone)

    @property
    def shortest_interval(self) -> timedelta:
        """Return the least time between two runs, by a clock that nobody changes."""
        return _read(self.expression).shortest_interval

    def next_after(self, moment: datetime) -> datetime:
        """Return the first run after the moment; raise ValueError for a naive one."""
        moment = to_utc(moment)
        pattern, zone = _read(self.expression), _zone(self.timezone)
        wall = moment.astimezone(zone).replace(tzinfo=None)
        start = wall.replace(second=0, microsecond=0) + MINUTE
        if pattern.elapsed:
            start -= _set_back_soon(zone, moment)
        times = pattern.times_from(start)
        found: datetime | None = None
        while True:
            time = next(times)
            for run in _runs(time, zone, elapsed=pattern.elapsed):
                if run > moment and (found is None or run < found):
                    found = run
            # What a clock shows up to now it may show again, before or after later times.
            if found is not None and time > wall:
                return found

    def last_between(self, after: datetime, until: datetime) -> datetime | None:
        """Return the last run that is later than `after` and not later than `until`, or None.

        It takes some dozen looks ahead at most, however many runs lie between.
        """
        high = until = to_utc(until)
        last = self.next_after(after)
        if last > until:
            return None
        # No run lies after `high` and up to `until`, and the way from `last` to `high` is halved.
        while (run := self.next_after(last)) <= until:
            last = run
            middle = last + (high - last) / 2
            if (run := self.next_after(middle)) <= until:
                last = run
            else:
                high = middle
        return last

    def preview(self, after: datetime, n: int) -> list[datetime]:
        """Return the first n runs after the moment, in order."""
        runs: list[datetime] = []
        for _ in range(n):
            after = self.next_after(after)
            runs.append(after)
        return runs


@dataclass(frozen=True)
class _Pattern:
    """Know what the five fields name, on a calendar and a clock without changes.

    `days` are days of the month, `weekdays` pairs of a weekday (Sunday is 0) and its number in
    the month. A day must be named by both if `both` is set, else by one of them.
    """

    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[tuple[int, int]]
    both: bool
    elapsed: bool

    @cached_property
    def shortest_interval(self) -> timedelta:
        """Return the least time between two of the times that are named."""
        times = [60 * hour + minute for hour in self.hours for minute in self.minutes]
        overnight = self._fewest_days() * DAY - (times[-1] - times[0]) * MINUTE
        return min([overnight, *((b - a) * MINUTE for a, b in pairwise(times))])

    def _fewest_days(self) -> int:
        """Return how many days one of the days that are named comes after another at the least."""
        fewest, last = _CALENDAR[1], -_CALENDAR[1]
        for n in range(*_CALENDAR):
            if self._names(date.fromordinal(n)):
                fewest, last = min(fewest, n - last), n
                if fewest == 1:
                    break
        return fewest

    def times_from(self, wall: datetime) -> Iterator[datetime]:
        """Yield the naive times that are named, in order, from the given one on."""
        day, hour, minute = wall.date(), wall.hour, wall.minute
        while True:
            if self._names(day):
                for h in self.hours[bisect_left(self.hours, hour) :]:
                    first = bisect_left(self.minutes, minute) if h == hour else 0
                    for m in self.minutes[first:]:
                        yield datetime(day.year, day.month, day.day, h, m)  # noqa: DTZ001
            day, hour, minute = day + DAY, 0, 0
            while day.month not in self.months:
                day = (day.replace(day=1) + 31 * DAY).replace(day=1)

    def _names(self, day: date) -> bool:
        if day.month not in self.months:
            return False
        if self.both:
            return self._names_in_month(day) and self._names_in_week(day)
        return self._names_in_month(day) or self._names_in_week(day)

    def _names_in_month(self, day: date) -> bool:
        return day.day in self.days or (_LAST in self.days and (day + DAY).month != day.month)

    def _names_in_week(self, day: date) -> bool:
        weekday = day.isoweekday() % 7
        return (weekday, (day.day + 6) // 7) in self.weekdays or (
            (weekday, _LAST) in self.weekdays and (day + 7 * DAY).month != day.month
        )


@lru_cache(maxsize=4096)
def _read(expression: str) -> _Pattern:
    text = expression.strip().lower()
    fields = SHORTCUTS.get(text, text).split()
    if len(fields) != 5:
        raise ValueError(
            f"{expression[:50]!r} is not a cron expression: write five fields (minute, hour, day of"
            f" the month, month, day of the week) or one of {', '.join(SHORTCUTS)}"
        )
    for field, size in zip(fields, _SIZES, strict=True):
        for entry in field.split(","):
            _check(entry, size)
    # As cron has it (Debian's crontab(5)): only if both say something else a day may be either.
    both = fields[2][0] in "*?" or fields[4][0] in "*?"
    try:
        (minutes, hours, days, months, weekdays), nth = croniter.expand(
            # A month that lacks the day still has the weekday, if that is enough.
            " ".join(fields),
            strict=both,
        )
    except CroniterError as error:
        raise ValueError(f"{expression[:50]!r} is not a cron expression: {error}") from None
    # croniter forgets a plain weekday that is named beside a numbered one of its own.
    if nth and (days != ["*"] or not all(_NTH.fullmatch(entry) for entry in fields[4].split(","))):
        raise ValueError(
            f"{expression[:50]!r}: # and L weekdays stand alone, beside no plain weekday and no"
            " day of the month; make two schedules"
        )
    return _Pattern(
        minutes=tuple(_numbers(minutes) or range(60)),
        hours=tuple(_numbers(hours) or range(24)),
        days=frozenset(_numbers(days) or range(1, 32)),
        months=frozenset(_numbers(months) or range(1, 13)),
        weekdays=frozenset(
            (weekday, week)
            for weekday in _numbers(weekdays) or range(7)
            for week in (_numbers(nth[weekday]) if nth else _WEEKS)
        ),
        both=both,
        elapsed=fields[0].startswith("*") or fields[1].startswith("*"),
    )


def _check(entry: str, size: int) -> None:
    """Refuse what croniter would read by chance, or otherwise than people.

    `size` is how many values the field has.
    """
    shown = entry[:50]
    found = _ENTRY.fullmatch(entry)
    if _RANDOM.fullmatch(entry):
        raise ValueError(
            f"{shown!r} in a cron expression is random or hashed: write the number, and use"
            " jitter to spread runs"
        )
    if found is None:
        raise ValueError(
            f"{shown!r} in a cron expression is no number, name, range, step, # or L entry"
        )
    if found["low"]:
        low, high = (int(_NUMBERS.get(found[bound], found[bound])) for bound in ("low", "high"))
        # Sunday is 7 and 0.
        if low == high or (low, high, size) == (7, 0, 7):
            raise ValueError(f"{shown!r} in a cron expression is a range of one value")
        if low > high and found["step"]:
            raise ValueError(
                f"{shown!r} in a cron expression goes over the end of its field, where a step is"
                " ambiguous: write the values"
            )
    if found["step"] and int(found["step"][1:]) > size:
        raise ValueError(
            f"{shown!r} in a cron expression steps over the whole field, which has {size} values:"
            " use every= for such an interval"
        )


def _numbers(values: Collection[int | str]) -> list[int]:
    """Return croniter's values as sorted numbers, and none for any."""
    if "*" in values:
        return []
    return sorted(_LAST if isinstance(value, str) else value for value in values)


@lru_cache(maxsize=1024)
def _zone(name: str) -> ZoneInfo:
    # An unknown name is a KeyError, a path a ValueError, the name of a folder an OSError.
    try:
        return ZoneInfo(name)
    except (LookupError, OSError, ValueError):
        raise ValueError(
            f"{name[:50]!r} is not a time zone: write a name such as Europe/Berlin or UTC"
        ) from None


def to_utc(moment: datetime) -> datetime:
    """Return the moment in UTC; raise ValueError for a naive one.

    Two times of one zone compare as clocks on the wall do, so all reckoning is done in UTC.
    """
    if moment.utcoffset() is None:
        raise ValueError(f"a moment has a time zone: {moment!r}")
    return moment.astimezone(UTC)


def _offset(zone: ZoneInfo, moment: datetime) -> timedelta:
    return moment.astimezone(zone).utcoffset() or timedelta(0)


def _set_back_soon(zone: ZoneInfo, moment: datetime) -> timedelta:
    """Return by how much the clocks are set back within a day, or nothing."""
    return max(_offset(zone, moment) - _offset(zone, moment + DAY), timedelta(0))


def _runs(time: datetime, zone: ZoneInfo, *, elapsed: bool) -> tuple[datetime, ...]:
    """Return the moments that a local time stands for: none, one or two."""
    local = time.replace(tzinfo=zone)
    first, second = local.astimezone(UTC), local.replace(fold=1).astimezone(UTC)
    if first == second:
        return (first,)
    if first < second:
        return (first, second) if elapsed else (first,)
    # In a gap: read by the offset before it the time lies after the gap, and the other way round.
    return () if elapsed else (_end_of_gap(zone, second, first),)


def _end_of_gap(zone: ZoneInfo, before: datetime, after: datetime) -> datetime:
    offset = _offset(zone, before)
    seconds = range(int((after - before) / SECOND) + 1)
    changed = bisect_left(
        seconds, True, key=lambda passed: _offset(zone, before + passed * SECOND) != offset
    )
    return before + changed * SECOND
