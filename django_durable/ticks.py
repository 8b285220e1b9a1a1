"""The ticks of a schedule: when it runs, and what to make up for after a gap.

A tick is a nominal time. Everything here follows from the rule and the moments that are passed
in, without a clock or a database, so workers that look at one row agree.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from typing import Literal, NamedTuple, get_args

from .cron import Cron, to_utc

CatchUp = Literal["one", "skip", "all"]

SHORTEST, LONGEST = timedelta(seconds=1), timedelta(days=36500)
LATENESS = timedelta(seconds=60)
# How many ticks of one rule are taken on at most, unless somebody wants fewer.
MOST = 1000

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NOTHING = timedelta(0)
_MOMENT = timedelta(microseconds=1)


@dataclass(frozen=True)
class Grid:
    """Say when an interval comes round, with the verbs of a cron expression."""

    anchor: datetime
    shortest_interval: timedelta

    def next_after(self, moment: datetime) -> datetime:
        """Return the first point of the grid after the moment."""
        return moment + self.shortest_interval - (moment - self.anchor) % self.shortest_interval

    def last_between(self, after: datetime, until: datetime) -> datetime | None:
        """Return the last point that is later than `after` and not later than `until`, or None."""
        last = until - (until - self.anchor) % self.shortest_interval
        return last if last > after else None


@dataclass(frozen=True)
class Rule:
    """Say when a schedule runs.

    It has either `cron` or `every` (from 1 second to 100 years). Its ticks lie from `starts_at`
    to `until`, both included and kept in UTC. `catch_up` says which missed ticks run: `one` (the
    newest), `skip` (none) or `all`. A run lies up to `jitter` before or after its tick; that is
    shorter than the interval, or ticks would come into reach together. Raise ValueError for
    anything else.
    """

    cron: Cron | None = None
    every: timedelta | None = None
    starts_at: datetime | None = None
    until: datetime | None = None
    catch_up: CatchUp = "one"
    jitter: timedelta | None = None

    def __post_init__(self) -> None:
        if self.catch_up not in get_args(CatchUp):
            raise ValueError(f"catch_up is one, skip or all, not {self.catch_up!r:.50}")
        for name in ("starts_at", "until"):
            if (moment := getattr(self, name)) is not None:
                object.__setattr__(self, name, to_utc(moment))
        if self.starts_at and self.until and self.until < self.starts_at:
            raise ValueError(f"until ({self.until}) lies before starts_at ({self.starts_at})")
        for name in ("every", "jitter"):
            duration = getattr(self, name)
            if duration is not None and not isinstance(duration, timedelta):
                raise ValueError(f"{name} is a timedelta, not {duration!r:.50}")
        if self.every is not None and not SHORTEST <= self.every <= LONGEST:
            raise ValueError(f"every is from 1 second to {LONGEST.days} days, not {self.every}")
        times = self.times(self.starts_at or _EPOCH)
        # To find the interval out takes a while, the first time.
        if self.jitter and not _NOTHING <= self.jitter < times.shortest_interval:
            raise ValueError(
                "jitter is from 0 on and shorter than the interval"
                f" ({times.shortest_interval}), not {self.jitter}"
            )

    @property
    def reach(self) -> timedelta:
        """Return how long before a tick its job has to exist: the jitter, or nothing."""
        return self.jitter or _NOTHING

    def times(self, anchor: datetime) -> Cron | Grid:
        """Return the cron expression, or the grid of `every` that goes through the anchor."""
        if self.every is None and self.cron is not None:
            return self.cron
        if self.cron is None and self.every is not None:
            return Grid(anchor, self.every)
        raise ValueError("a schedule has either cron or every")


class Due(NamedTuple):
    """Say what one look has found: what to run now, in order, and when to look again.

    `next_run_at` is None when no tick is left.
    """

    run: list[datetime]
    next_run_at: datetime | None


def first_tick(rule: Rule, now: datetime) -> datetime | None:
    """Return the first tick of a new schedule, or None if it has none.

    Cron begins with its next tick, `every` at once, or where its grid from a `starts_at` in the
    past has the next point. Ticks before now are never missed. With a `starts_at` from now on,
    the first tick is the first one from there, itself included.
    """
    now = to_utc(now)
    if rule.starts_at is not None and now <= rule.starts_at:
        return _within(rule, now - _MOMENT)
    times = rule.times(rule.starts_at or now)
    return _within(rule, _next(times, now if rule.every is None else now - _MOMENT))


def next_tick(rule: Rule, after: datetime) -> datetime | None:
    """Return the tick that follows a tick, or None if that was the last one.

    The grid of `every` is the one that `after` lies on.
    """
    after = to_utc(after)
    return _within(rule, _next(rule.times(after), after))


def moved_on(rule: Rule, next_run_at: datetime, now: datetime) -> datetime | None:
    """Return the first tick after now, without catching up; None if none is left.

    A tick that is still to come stays. This is for schedules that are off or come back.
    """
    now, tick = to_utc(now), _within(rule, to_utc(next_run_at))
    if tick is None or tick > now:
        return tick
    return _within(rule, _next(rule.times(tick), now))


def due_ticks(
    rule: Rule,
    next_run_at: datetime,
    now: datetime,
    lateness: timedelta = LATENESS,
    most: int = MOST,
) -> Due:
    """Decide about the ticks from `next_run_at` on that are due now.

    `next_run_at` is a tick whatever the rule says; one before `starts_at` gives way to the first
    from there. Of those that have passed all but the newest are missed, and the newest too if it is
    more than `lateness` late; `catch_up` says what becomes of them. With a jitter, a tick is due
    that much earlier, so that its run may be put before it, and late that much later.

    At most `most` ticks are taken on at one look. Then `next_run_at` is the next of them, due
    already, and the next look goes on from there.
    """
    now, tick = to_utc(now), _within(rule, to_utc(next_run_at))
    horizon = min(now + rule.reach, rule.until or now + rule.reach)
    if tick is None or tick > horizon:
        return Due([], tick)
    if rule.catch_up == "all":
        ticks = _ticks(rule, tick, horizon, most)
        return Due(ticks, next_tick(rule, ticks[-1]))
    run: list[datetime] = []
    following: datetime | None = tick
    if tick <= now:
        newest = rule.times(tick).last_between(tick, min(now, horizon)) or tick
        following = next_tick(rule, newest)
        missed = now - newest > rule.reach + lateness
        if not (missed and rule.catch_up == "skip"):
            run = [newest]
    # One in reach has not been missed, whatever has.
    if following is not None and following <= horizon and len(run) < most:
        run.append(following)
        following = next_tick(rule, following)
    return Due(run, following)


def jittered(tick: datetime, jitter: timedelta | None, key: object) -> datetime:
    """Return a moment up to `jitter` before or after the tick, in UTC.

    It is drawn evenly from the tick and the key, such as the id of the schedule: the same
    wherever it is worked out, another for each tick. Ticks stay where they are, so nothing adds
    up; neighbours may change places where the jitter is over half their interval.
    """
    tick = to_utc(tick)
    drawn = blake2b(f"{key} {tick.isoformat()}".encode(), digest_size=8).digest()
    share = int.from_bytes(drawn, "big") / 2**64
    return tick + (2 * share - 1) * (jitter or _NOTHING)


def _next(times: Cron | Grid, moment: datetime) -> datetime | None:
    """Return the first time after the moment, or None if the calendar ends before it."""
    try:
        return times.next_after(moment)
    except OverflowError:
        return None


def _within(rule: Rule, tick: datetime | None) -> datetime | None:
    """Return the tick, or the first one from `starts_at` if it lies before that.

    Return None if that is later than `until`.
    """
    if tick is not None and rule.starts_at is not None and tick < rule.starts_at:
        tick = _next(rule.times(rule.starts_at), rule.starts_at - _MOMENT)
    return None if tick is None or (rule.until is not None and tick > rule.until) else tick


def _ticks(rule: Rule, first: datetime, last: datetime, most: int) -> list[datetime]:
    """Return the ticks from the first to the last, or the first `most` of them."""
    ticks: list[datetime] = []
    tick: datetime | None = first
    while tick is not None and tick <= last and len(ticks) < most:
        ticks.append(tick)
        tick = next_tick(rule, tick)
    return ticks
