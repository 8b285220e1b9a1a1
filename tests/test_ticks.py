"""Ticks of schedules: the first and the next, what is made up for after a gap, and jitter."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import get_args
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from django_durable.cron import Cron
from django_durable.ticks import (
    LATENESS,
    MOST,
    CatchUp,
    Due,
    Grid,
    Rule,
    due_ticks,
    first_tick,
    jittered,
    moved_on,
    next_tick,
)

SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
MOMENT = timedelta(microseconds=1)
NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
HOURLY = Cron("0 * * * *", "UTC")
PATIENTLY = settings(deadline=None)


def catching_up(catch_up: CatchUp) -> Rule:
    return Rule(cron=HOURLY, catch_up=catch_up)


class TestRule:
    @pytest.mark.parametrize(
        ("options", "reason"),
        [
            ({}, "either cron or every"),
            ({"cron": HOURLY, "every": HOUR}, "either cron or every"),
            ({"every": timedelta(0)}, "from 1 second"),
            ({"every": SECOND - MOMENT}, "from 1 second"),
            ({"every": -HOUR}, "from 1 second"),
            ({"every": timedelta.max}, "from 1 second"),
            ({"every": 60}, "every is a timedelta"),
            ({"every": HOUR, "jitter": 30}, "jitter is a timedelta"),
            ({"every": HOUR, "jitter": -SECOND}, "jitter is from 0 on"),
            ({"every": HOUR, "jitter": HOUR}, "shorter than the interval"),
            ({"cron": HOURLY, "jitter": HOUR}, "shorter than the interval"),
            ({"cron": Cron("0,5 9 * * *", "UTC"), "jitter": 5 * MINUTE}, "shorter than the inter"),
            ({"every": HOUR, "catch_up": "most"}, "one, skip or all"),
            ({"every": HOUR, "catch_up": None}, "one, skip or all"),
            ({"every": HOUR, "starts_at": NOON, "until": NOON - MOMENT}, "before starts_at"),
            ({"every": HOUR, "starts_at": NOON.replace(tzinfo=None)}, "time zone"),
            ({"every": HOUR, "until": NOON.replace(tzinfo=None)}, "time zone"),
        ],
    )
    def test_refuses_a_wrong_rule(self, options: dict[str, object], reason: str) -> None:
        with pytest.raises(ValueError, match=reason):
            Rule(**options)  # type: ignore[arg-type]

    def test_compares_its_limits_as_moments(self) -> None:
        # As clocks on the wall these two would be the wrong way round.
        there = ZoneInfo("Europe/Berlin")
        first = datetime(2026, 10, 25, 2, 40, tzinfo=there, fold=0)
        second = datetime(2026, 10, 25, 2, 20, tzinfo=there, fold=1)
        rule = Rule(every=MINUTE, starts_at=first, until=second)
        assert rule.until - rule.starts_at == 40 * MINUTE  # type: ignore[operator]
        with pytest.raises(ValueError, match="before starts_at"):
            Rule(every=MINUTE, starts_at=second, until=first)

    @pytest.mark.parametrize(
        ("expression", "most"),
        [("0 0 1 * *", 28 * DAY), ("@yearly", 365 * DAY), ("0 9 * * 1-5", DAY)],
    )
    def test_jitter_goes_up_to_the_interval_of_the_calendar(
        self, expression: str, most: timedelta
    ) -> None:
        Rule(cron=Cron(expression, "UTC"), jitter=most - SECOND)
        with pytest.raises(ValueError, match="shorter than the interval"):
            Rule(cron=Cron(expression, "UTC"), jitter=most)

    def test_one_single_run_is_a_rule(self) -> None:
        rule = Rule(every=DAY, starts_at=NOON, until=NOON)
        assert first_tick(rule, NOON - DAY) == NOON
        assert due_ticks(rule, NOON, NOON) == Due([NOON], None)


class TestFirst:
    def test_cron_waits_for_its_next_tick(self) -> None:
        assert first_tick(Rule(cron=HOURLY), NOON + 20 * MINUTE) == NOON + HOUR
        assert first_tick(Rule(cron=HOURLY), NOON) == NOON + HOUR

    def test_every_is_at_once(self) -> None:
        now = NOON + 17 * MOMENT
        assert first_tick(Rule(every=HOUR), now) == now

    @pytest.mark.parametrize("lead", [timedelta(0), MOMENT, 3 * DAY])
    def test_a_tick_at_the_very_start_runs(self, lead: timedelta) -> None:
        for rule in (Rule(cron=HOURLY, starts_at=NOON), Rule(every=HOUR, starts_at=NOON)):
            assert first_tick(rule, NOON - lead) == NOON

    def test_start_between_ticks_of_cron(self) -> None:
        start = NOON + MOMENT
        for now in (NOON - DAY, start):
            assert first_tick(Rule(cron=HOURLY, starts_at=start), now) == NOON + HOUR

    def test_grid_of_every_goes_through_a_start_in_the_past(self) -> None:
        rule = Rule(every=7 * MINUTE, starts_at=NOON - DAY)
        first = first_tick(rule, NOON)
        assert first is not None
        assert NOON <= first < NOON + 7 * MINUTE
        assert (first - (NOON - DAY)) % (7 * MINUTE) == timedelta(0)
        assert first_tick(rule, first) == first

    def test_nothing_is_left_after_the_end(self) -> None:
        assert first_tick(Rule(cron=HOURLY, until=NOON), NOON) is None
        assert first_tick(Rule(cron=HOURLY, until=NOON), NOON - MOMENT) == NOON
        assert first_tick(Rule(every=HOUR, until=NOON), NOON) == NOON
        assert first_tick(Rule(every=HOUR, until=NOON), NOON + MOMENT) is None
        short = Rule(cron=HOURLY, starts_at=NOON + MINUTE, until=NOON + 2 * MINUTE)
        assert first_tick(short, NOON) is None

    def test_a_moment_in_any_zone_gives_a_tick_in_utc(self) -> None:
        now = NOON.astimezone(ZoneInfo("Asia/Kathmandu"))
        for rule in (Rule(every=HOUR), Rule(cron=HOURLY)):
            tick = first_tick(rule, now)
            assert tick is not None
            assert tick.tzinfo is UTC

    def test_refuses_a_naive_moment(self) -> None:
        with pytest.raises(ValueError, match="time zone"):
            first_tick(Rule(every=HOUR), NOON.replace(tzinfo=None))


class TestNext:
    def test_every_goes_by_elapsed_time_where_clocks_change(self) -> None:
        there = ZoneInfo("Europe/Berlin")
        tick = datetime(2026, 3, 28, 12, tzinfo=there)
        assert next_tick(Rule(every=DAY), tick) == datetime(2026, 3, 29, 13, tzinfo=there)

    def test_last_tick_is_the_one_at_the_end(self) -> None:
        for rule in (Rule(cron=HOURLY, until=NOON), Rule(every=HOUR, until=NOON)):
            assert next_tick(rule, NOON - HOUR) == NOON
            assert next_tick(rule, NOON) is None

    def test_start_that_was_put_off_is_respected(self) -> None:
        start = NOON + 90 * MINUTE
        assert next_tick(Rule(every=HOUR, starts_at=start), NOON) == start
        assert next_tick(Rule(cron=HOURLY, starts_at=start), NOON) == NOON + 2 * HOUR


class TestGrid:
    def test_last_point_lies_after_the_one_end_and_up_to_the_other(self) -> None:
        grid = Grid(NOON, HOUR)
        assert grid.last_between(NOON, NOON + 150 * MINUTE) == NOON + 2 * HOUR
        assert grid.last_between(NOON, NOON + HOUR) == NOON + HOUR
        assert grid.last_between(NOON, NOON + 59 * MINUTE) is None

    def test_next_point_lies_after_the_moment_also_before_the_anchor(self) -> None:
        grid = Grid(NOON, HOUR)
        assert grid.next_after(NOON) == NOON + HOUR
        assert grid.next_after(NOON - DAY - MOMENT) == NOON - DAY


class TestMovedOn:
    def test_hourly_that_comes_back_at_twenty_past_waits_for_the_next_hour(self) -> None:
        back = NOON + 20 * MINUTE
        assert moved_on(Rule(cron=HOURLY), NOON - 5 * DAY, back) == NOON + HOUR

    def test_every_stays_on_its_grid(self) -> None:
        tick = NOON - 5 * DAY + 7 * SECOND
        assert moved_on(Rule(every=HOUR), tick, NOON) == NOON + 7 * SECOND

    def test_tick_to_come_stays(self) -> None:
        odd = NOON + 3 * MINUTE
        for rule in (Rule(cron=HOURLY), Rule(every=HOUR)):
            assert moved_on(rule, odd, NOON) == odd

    def test_tick_of_this_moment_is_over(self) -> None:
        for rule in (Rule(cron=HOURLY), Rule(every=HOUR)):
            assert moved_on(rule, NOON, NOON) == NOON + HOUR

    def test_nothing_is_left_after_the_end(self) -> None:
        assert moved_on(Rule(cron=HOURLY, until=NOON), NOON - DAY, NOON) is None
        assert moved_on(Rule(cron=HOURLY, until=NOON), NOON + HOUR, NOON) is None


class TestDue:
    def test_nothing_is_due_before_the_tick(self) -> None:
        for catch_up in get_args(CatchUp):
            assert due_ticks(catching_up(catch_up), NOON, NOON - MOMENT) == Due([], NOON)

    def test_tick_on_time_runs_whatever_the_rule_for_missed_ones(self) -> None:
        for catch_up in get_args(CatchUp):
            for late in (timedelta(0), LATENESS):
                due = due_ticks(catching_up(catch_up), NOON, NOON + late)
                assert due == Due([NOON], NOON + HOUR)

    def test_tick_late_by_more_than_a_minute_is_missed(self) -> None:
        now = NOON + LATENESS + MOMENT
        assert due_ticks(catching_up("skip"), NOON, now) == Due([], NOON + HOUR)
        assert due_ticks(catching_up("one"), NOON, now) == Due([NOON], NOON + HOUR)
        assert due_ticks(catching_up("all"), NOON, now) == Due([NOON], NOON + HOUR)

    @pytest.mark.parametrize(("catch_up", "late"), [("skip", 0), ("one", 1), ("all", 5)])
    @pytest.mark.parametrize("every", [False, True])
    def test_five_hours_down(self, catch_up: CatchUp, late: int, every: bool) -> None:
        rule = Rule(
            cron=None if every else HOURLY, every=HOUR if every else None, catch_up=catch_up
        )
        back = NOON + 4 * HOUR + 20 * MINUTE
        due = due_ticks(rule, NOON, back)
        nominal = [NOON + hour * HOUR for hour in range(5)]
        assert due == Due(nominal[5 - late :], NOON + 5 * HOUR)
        assert due.next_run_at is not None
        then = due_ticks(rule, due.next_run_at, due.next_run_at + SECOND)
        assert then == Due([NOON + 5 * HOUR], NOON + 6 * HOUR)

    def test_newest_on_time_runs_after_missed_ones(self) -> None:
        back = NOON + 5 * HOUR + SECOND
        newest = NOON + 5 * HOUR
        assert due_ticks(catching_up("skip"), NOON, back) == Due([newest], newest + HOUR)
        assert due_ticks(catching_up("one"), NOON, back) == Due([newest], newest + HOUR)
        assert len(due_ticks(catching_up("all"), NOON, back).run) == 6

    def test_run_exactly_at_the_end_happens_and_none_later(self) -> None:
        for catch_up in get_args(CatchUp):
            rule = Rule(cron=HOURLY, until=NOON, catch_up=catch_up)
            assert due_ticks(rule, NOON, NOON) == Due([NOON], None)
            assert due_ticks(rule, NOON + HOUR, NOON + 2 * HOUR) == Due([], None)

    @pytest.mark.parametrize(("catch_up", "late"), [("skip", 0), ("one", 1), ("all", 2)])
    def test_ticks_after_the_end_are_never_missed(self, catch_up: CatchUp, late: int) -> None:
        end = NOON + 90 * MINUTE
        for rule in (
            Rule(every=HOUR, until=end, catch_up=catch_up),
            Rule(cron=HOURLY, until=end, catch_up=catch_up),
        ):
            due = due_ticks(rule, NOON, NOON + DAY)
            assert due == Due([NOON, NOON + HOUR][2 - late :], None)

    def test_ticks_before_the_start_are_never_missed(self) -> None:
        for catch_up in get_args(CatchUp):
            rule = Rule(every=HOUR, starts_at=NOON, catch_up=catch_up)
            assert due_ticks(rule, NOON - DAY, NOON - MINUTE) == Due([], NOON)
            assert due_ticks(rule, NOON - DAY, NOON) == Due([NOON], NOON + HOUR)

    def test_stored_tick_runs_though_the_rule_has_changed(self) -> None:
        odd = NOON + 3 * MINUTE
        for rule in (Rule(cron=HOURLY), Rule(cron=HOURLY, starts_at=odd)):
            assert due_ticks(rule, odd, odd) == Due([odd], NOON + HOUR)

    def test_every_keeps_its_grid_however_late_the_looks_are(self) -> None:
        rule, tick = Rule(every=10 * SECOND), NOON
        drawn = random.Random(7)  # noqa: S311
        for _ in range(200):
            due = due_ticks(rule, tick, tick + drawn.random() * 9.9 * SECOND)
            assert due.run == [tick]
            assert due.next_run_at == tick + 10 * SECOND
            tick = due.next_run_at

    def test_years_are_jumped_over(self) -> None:
        now = NOON + 5 * 365 * DAY + SECOND
        for catch_up in ("one", "skip"):
            due = due_ticks(Rule(every=MINUTE, catch_up=catch_up), NOON, now)
            assert due == Due([now - SECOND], now - SECOND + MINUTE)
            cron = Rule(cron=Cron("* * * * *", "Europe/Berlin"), catch_up=catch_up)
            due = due_ticks(cron, NOON, now)
            assert due == Due([now - SECOND], now - SECOND + MINUTE)

    @pytest.mark.parametrize("catch_up", ["one", "skip"])
    def test_what_is_jumped_over_is_not_gone_through(
        self, monkeypatch: pytest.MonkeyPatch, catch_up: CatchUp
    ) -> None:
        following, steps = Cron.next_after, 0

        def counted(cron: Cron, moment: datetime) -> datetime:
            nonlocal steps
            steps += 1
            return following(cron, moment)

        monkeypatch.setattr(Cron, "next_after", counted)
        rule = Rule(cron=Cron("* * * * *", "UTC"), catch_up=catch_up)
        due_ticks(rule, NOON, NOON + DAY)
        assert steps < 50

    def test_a_long_way_is_caught_up_in_pieces(self) -> None:
        rule = Rule(cron=Cron("* * * * *", "UTC"), catch_up="all")
        now, tick, looks = NOON + 2 * DAY, NOON, 0
        run: list[datetime] = []
        while tick <= now:
            due = due_ticks(rule, tick, now)
            assert 1 <= len(due.run) <= MOST
            assert due.next_run_at is not None
            looks, tick, run = looks + 1, due.next_run_at, run + due.run
        assert looks == 3
        assert run == [NOON + minute * MINUTE for minute in range(2 * 24 * 60 + 1)]

    def test_300_schedules_over_a_day_run_exactly_as_often_as_they_should(self) -> None:
        zones = ["UTC", "Europe/Berlin", "Asia/Kathmandu"]
        rules: list[Rule] = []
        for n in range(75):
            rules += [
                Rule(cron=Cron(f"{n % 60} * * * *", zones[n % 3])),
                Rule(cron=Cron(f"{n % 60} {n % 24} * * *", zones[n % 3]), catch_up="skip"),
                Rule(cron=Cron("*/15 * * * *", zones[n % 3]), catch_up="all"),
                Rule(every=15 * MINUTE, starts_at=NOON + n * SECOND, jitter=n * SECOND),
            ]
        ticks = [first_tick(rule, NOON - MOMENT) for rule in rules]
        drawn, now = random.Random(3), NOON  # noqa: S311
        run: list[tuple[int, datetime]] = []
        while now < NOON + DAY:
            now = min(now + drawn.uniform(1, 60) * SECOND, NOON + DAY)
            for name, (rule, tick) in enumerate(zip(rules, ticks, strict=True)):
                assert tick is not None
                if tick - rule.reach <= now:
                    due = due_ticks(rule, tick, now)
                    ticks[name] = due.next_run_at
                    run += [(name, tick) for tick in due.run if tick < NOON + DAY]
        assert len(rules) == 300
        assert len(run) == len(set(run)) == 75 * 24 + 75 + 75 * 96 + 75 * 96


@PATIENTLY
@given(
    every=st.integers(1, 10_000).map(lambda seconds: seconds * SECOND),
    catch_up=st.sampled_from(get_args(CatchUp)),
    looks=st.lists(st.integers(0, 100_000), min_size=1, max_size=30),
)
def test_no_tick_runs_twice_and_all_means_all(
    every: timedelta, catch_up: CatchUp, looks: list[int]
) -> None:
    rule, tick, now = Rule(every=every, catch_up=catch_up), NOON, NOON
    run: list[datetime] = []
    for wait in looks:
        now += wait * SECOND
        due = due_ticks(rule, tick, now)
        run += due.run
        assert due.next_run_at is not None
        tick = due.next_run_at
    assert all(a < b for a, b in pairwise(run))
    assert (tick - NOON) % every == timedelta(0)
    if catch_up == "all":
        assert len(run) == (tick - NOON) // every
    else:
        assert tick > now


class TestJitter:
    def test_is_the_same_wherever_it_is_drawn(self) -> None:
        there = NOON.astimezone(ZoneInfo("Asia/Kathmandu"))
        assert jittered(NOON, MINUTE, 7) == jittered(there, MINUTE, 7)
        assert jittered(there, MINUTE, 7).tzinfo is UTC

    def test_is_another_for_each_tick_and_key(self) -> None:
        drawn = {jittered(NOON + n * HOUR, MINUTE, 7) - n * HOUR for n in range(100)}
        assert len(drawn) == 100
        assert len({jittered(NOON, MINUTE, key) for key in range(100)}) == 100

    def test_lies_evenly_around_the_tick(self) -> None:
        away = [jittered(NOON + n * HOUR, MINUTE, "x") - NOON - n * HOUR for n in range(10_000)]
        assert all(abs(distance) <= MINUTE for distance in away)
        for quarter in range(4):
            low = (quarter - 2) * 30 * SECOND
            assert 2300 < sum(low <= distance < low + 30 * SECOND for distance in away) < 2700

    def test_is_nothing_without_one(self) -> None:
        assert jittered(NOON, None, 7) == jittered(NOON, timedelta(0), 7) == NOON

    def test_never_adds_up(self) -> None:
        rule, tick = Rule(every=10 * SECOND, jitter=5 * SECOND), NOON
        for n in range(500):
            (run,), following = due_ticks(rule, tick, tick - 5 * SECOND)
            assert (run, following) == (tick, NOON + (n + 1) * 10 * SECOND)
            assert abs(jittered(run, rule.jitter, 1) - run) <= 5 * SECOND
            tick = following  # type: ignore[assignment]

    def test_brings_a_tick_into_reach_early_and_makes_it_late_late(self) -> None:
        rule = Rule(cron=HOURLY, catch_up="skip", jitter=10 * MINUTE)
        assert due_ticks(rule, NOON, NOON - 10 * MINUTE - MOMENT).run == []
        assert due_ticks(rule, NOON, NOON - 10 * MINUTE).run == [NOON]
        assert due_ticks(rule, NOON, NOON + 11 * MINUTE).run == [NOON]
        assert due_ticks(rule, NOON, NOON + 11 * MINUTE + MOMENT).run == []

    @pytest.mark.parametrize("catch_up", get_args(CatchUp))
    def test_just_under_the_interval_still_loses_no_tick(self, catch_up: CatchUp) -> None:
        for rule in (
            Rule(every=MINUTE, jitter=MINUTE - MOMENT, catch_up=catch_up),
            Rule(cron=Cron("* * * * *", "UTC"), jitter=MINUTE - MOMENT, catch_up=catch_up),
        ):
            now = NOON + 13 * SECOND
            first = tick = first_tick(rule, now)
            run: list[datetime] = []
            for _ in range(600):
                due = due_ticks(rule, tick, now)  # type: ignore[arg-type]
                run, tick, now = run + due.run, due.next_run_at, now + SECOND
            assert first is not None
            assert run == [first + n * MINUTE for n in range(len(run))]
            assert len(run) >= 10

    @pytest.mark.parametrize("catch_up", get_args(CatchUp))
    def test_a_tick_that_has_yet_to_come_takes_the_place_of_none(self, catch_up: CatchUp) -> None:
        rule = Rule(every=HOUR, jitter=50 * MINUTE, catch_up=catch_up)
        # The next one is due in ten minutes' time, with a run that may lie before it.
        run, following = due_ticks(rule, NOON, NOON + 15 * MINUTE)
        assert (run, following) == ([NOON, NOON + HOUR], NOON + 2 * HOUR)
        # Hours later, what was missed is made up for, and the tick in reach runs, too.
        missed = {"one": [NOON + 5 * HOUR], "skip": [], "all": [NOON + n * HOUR for n in range(6)]}
        rule = Rule(every=HOUR, jitter=MINUTE, catch_up=catch_up)
        run, following = due_ticks(rule, NOON, NOON + 6 * HOUR - MINUTE)
        assert (run, following) == ([*missed[catch_up], NOON + 6 * HOUR], NOON + 7 * HOUR)
        assert due_ticks(rule, NOON, NOON + 6 * HOUR - MINUTE, most=1).run == run[:1]

    def test_has_no_effect_past_the_end(self) -> None:
        rule = Rule(every=HOUR, jitter=30 * MINUTE, until=NOON)
        assert due_ticks(rule, NOON, NOON - 30 * MINUTE) == Due([NOON], None)


@pytest.mark.parametrize(
    "rule",
    [Rule(cron=Cron("0 0 29 2 *", "UTC")), Rule(every=36500 * DAY)],
    ids=["cron", "every"],
)
def test_after_the_last_tick_that_the_calendar_holds_there_is_none(rule: Rule) -> None:
    late = datetime(9997, 1, 1, tzinfo=UTC)
    assert next_tick(rule, late) is None
    assert moved_on(rule, late, late) is None
