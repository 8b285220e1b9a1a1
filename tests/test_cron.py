"""Cron expressions in time zones: what is read, and when it runs, also where clocks change."""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from croniter import croniter
from cronsim import CronSim
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from django_durable.cron import SHORTCUTS, Cron

NEW_YORK, BERLIN, PARIS = "America/New_York", "Europe/Berlin", "Europe/Paris"
SAO_PAULO, LORD_HOWE = "America/Sao_Paulo", "Australia/Lord_Howe"
ZONES = [NEW_YORK, BERLIN, SAO_PAULO, LORD_HOWE, "Asia/Kathmandu", "UTC"]

FIELDS = [(0, 59), (0, 23), (1, 31), (1, 12), (0, 6)]
MINUTE, DAY = timedelta(minutes=1), timedelta(days=1)

# A busy machine is no failure.
PATIENTLY = settings(deadline=None)


def utc(*numbers: int) -> datetime:
    return datetime(*numbers, tzinfo=UTC)  # type: ignore[arg-type, misc]


def runs_on(expression: str, zone: str, day: date) -> list[str]:
    """Return the runs of one local day as local times with their offsets."""
    start = datetime(day.year, day.month, day.day, tzinfo=ZoneInfo(zone)).astimezone(UTC)
    shown = []
    moment = start - timedelta(microseconds=1)
    cron = Cron(expression, zone)
    while (moment := cron.next_after(moment)).astimezone(ZoneInfo(zone)).date() <= day:
        shown.append(moment.astimezone(ZoneInfo(zone)).strftime("%H:%M%z"))
    return shown


@st.composite
def entries(draw: st.DrawFn, field: int) -> str:
    low, high = FIELDS[field]
    a, b = sorted(draw(st.lists(st.integers(low, high), min_size=2, max_size=2, unique=True)))
    step = draw(st.integers(1, max(2, (high - low) // 2)))
    forms = [f"{a}", f"{b}", f"{a}-{b}", f"{a}-{b}/{step}", f"*/{step}"]
    if field < 4:
        forms.append(f"{a}/{step}")
    return draw(st.sampled_from(forms))


def lists(field: int) -> st.SearchStrategy[str]:
    # A star comes first: elsewhere croniter takes it for more than cron does.
    some = st.lists(entries(field), min_size=1, max_size=3).map(sorted).map(",".join)
    return st.just("*") | some


# Around the hours at which clocks change.
NIGHT = st.lists(st.integers(0, 4), min_size=1, max_size=3, unique=True).map(
    lambda hours: ",".join(map(str, sorted(hours)))
)


@st.composite
def expressions(draw: st.DrawFn, *, weekday_forms: bool = False) -> str:
    """Draw an expression that croniter and cronsim are known to read alike."""
    hours = draw(lists(1) | NIGHT)
    days = draw(lists(2) | st.just("L"))
    weekdays = draw(lists(4))
    if weekday_forms and days == "*":
        weekdays = draw(st.sampled_from([weekdays, "1#2", "L5", "0#5,3#1", "mon-fri", "fri-mon"]))
    return f"{draw(lists(0))} {hours} {days} {draw(lists(3))} {weekdays}"


def croniter_like_cron(expression: str, start: datetime) -> croniter:
    """Let croniter match both days where one begins with a star, which it does not by itself."""
    fields = expression.split()
    day_or = fields[2][0] != "*" and fields[4][0] != "*"
    return croniter(expression, start, ret_type=datetime, day_or=day_or)


def cron_or_reject(expression: str, zone: str) -> Cron:
    """Leave out what can never come true, such as the 31st of April."""
    try:
        return Cron(expression, zone)
    except ValueError as error:
        assume("can never occur" not in str(error))
        raise


MOMENTS = st.datetimes(datetime(2024, 1, 1), datetime(2030, 12, 31)).map(  # noqa: DTZ001
    lambda moment: moment.replace(tzinfo=UTC)
)


class TestReading:
    @pytest.mark.parametrize(
        "expression",
        [
            *SHORTCUTS,
            "@DAILY",
            " 0  9 * * 1-5 ",
            "0 0 29 2 *",
            "0 0 29-31 2 *",
            "*/5 8-18/2,23 1,15 jan-mar,NOV Mon-Fri",
            "59/15 23/2 31/3 12/2 6/3",
            "0 22-4 * nov-feb sat-mon",
            "0 0 * * 7",
            "0 0 * * 0-7",
            "0 0 L * *",
            "0 0 1,L * *",
            "0 0 * * 5#2,L1",
            "0 0 ? * ?",
        ],
    )
    def test_accepts(self, expression: str) -> None:
        Cron(expression, "UTC")

    @pytest.mark.parametrize(
        ("expression", "reason"),
        [
            ("0 0 31 4 *", "can never occur"),
            ("0 0 31 2 *", "can never occur"),
            ("0 0 30 2 *", "can never occur"),
            ("", "five fields"),
            ("* * * *", "five fields"),
            ("0 * * * * *", "five fields"),
            ("0 0 1 1 * 0 2030", "five fields"),
            ("@reboot", "five fields"),
            ("@every 5m", "five fields"),
            ("R * * * *", "random or hashed"),
            ("0 r(0-5) * * *", "random or hashed"),
            ("R/15 * * * *", "random or hashed"),
            ("H * * * *", "random or hashed"),
            ("H(0-29)/10 * * * *", "random or hashed"),
            ("0 0 15W * *", "no number, name, range"),
            ("0 0 L-3 * *", "no number, name, range"),
            ("0 0 * * 1#6", "no number, name, range"),
            ("-1 * * * *", "no number, name, range"),
            (", * * * *", "no number, name, range"),
            ("999999999999 * * * *", "no number, name, range"),
            ("\u0665 * * * *", "no number, name, range"),
            ("60 * * * *", "out of range"),
            ("0 24 * * *", "out of range"),
            ("0 0 0 * *", "out of range"),
            ("0 0 * 13 *", "out of range"),
            ("0 0 * * 8", "out of range"),
            ("*/0 * * * *", "step '0'"),
            ("*/61 * * * *", "'\\*/61' in a cron expression steps over"),
            ("5/61 * * * *", "steps over"),
            ("10-20/61 * * * *", "steps over"),
            ("0 */25 * * *", "steps over"),
            ("0 0 */32 * *", "steps over"),
            ("0 0 1 */13 *", "steps over"),
            ("0 0 1 jan-mar/13 *", "steps over"),
            ("0 0 1 nov/13 *", "steps over"),
            ("0 0 * * */8", "steps over"),
            ("0 0 * * 1-5/8", "steps over"),
            ("? * * * *", "Question mark"),
            ("0 0 * mon *", "not acceptable"),
            ("0 0 jan * *", "not acceptable"),
            ("l * * * *", "not acceptable"),
            ("9-9 * * * *", "range of one value"),
            ("0 0 * jan-1 *", "range of one value"),
            ("0 0 * * 0-0", "range of one value"),
            ("0 0 * * 7-0", "range of one value"),
            ("0 0 * * 7-sun/2", "range of one value"),
            ("0 22-4/3 * * *", "over the end"),
            ("0 0 13 * 5#2", "stand alone"),
            ("0 0 * * 0-6,1#2", "stand alone"),
            ("0 0 * * 1,5#2", "mixing"),
            ("0 0 * * 1,1#2", "stand alone"),
            ("0 0 * * mon,mon#1", "stand alone"),
            ("0 0 * * 5,l5", "stand alone"),
        ],
    )
    def test_refuses_with_a_reason(self, expression: str, reason: str) -> None:
        with pytest.raises(ValueError, match=reason) as caught:
            Cron(expression, "UTC")
        assert len(str(caught.value)) < 300
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize("value", [None, 5, b"0 0 * * *", ["0 0 * * *"]])
    def test_refuses_what_is_no_text(self, value: object) -> None:
        with pytest.raises(ValueError, match="text"):
            Cron(value, "UTC")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="text"):
            Cron("0 0 * * *", value)  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        "zone", ["", "Mars/Olympus", "America", "../UTC", "/etc/passwd", "\0", "UTC\n", "x" * 9999]
    )
    def test_refuses_an_unknown_zone(self, zone: str) -> None:
        with pytest.raises(ValueError, match="is not a time zone"):
            Cron("0 0 * * *", zone)

    def test_is_a_value(self) -> None:
        cron = Cron("0 9 * * *", BERLIN)
        assert cron == Cron("0 9 * * *", BERLIN) != Cron("0 9 * * *", PARIS)
        assert len({cron, pickle.loads(pickle.dumps(cron))}) == 1  # noqa: S301
        with pytest.raises(AttributeError):
            cron.timezone = PARIS  # type: ignore[misc]

    @PATIENTLY
    @given(expressions(weekday_forms=True), MOMENTS)
    @example("0 0 13 * 5", utc(2026, 1, 1))
    @example("0 0 29 2 *", utc(2026, 1, 1))
    @example("0 0 * 2 1#5", utc(2026, 1, 1))
    @example("0 0 * * L5", utc(2026, 1, 1))
    @example("0 0 * * 0#5,3#1", utc(2026, 1, 1))
    @example("0 0 * * L0", utc(2026, 1, 1))
    def test_reads_as_croniter_does(self, expression: str, moment: datetime) -> None:
        cron = cron_or_reject(expression, "UTC")
        theirs = croniter_like_cron(expression, moment.replace(tzinfo=None))
        for run in cron.preview(moment, 20):
            assert run.replace(tzinfo=None) == theirs.get_next()

    @pytest.mark.parametrize(
        ("expression", "interval"),
        [
            ("* * * * *", MINUTE),
            ("*/7 * * * *", 4 * MINUTE),
            ("0,50 * * * *", 10 * MINUTE),
            ("0 9,17 * * 1", timedelta(hours=8)),
            ("0 0,23 * * *", timedelta(hours=1)),
            ("0 9,17 1 * *", timedelta(hours=8)),
            ("0 0 * * 1-5", DAY),
            ("30 8 * * 1,4", 3 * DAY),
            ("0 0,23 * * 1,2", timedelta(hours=1)),
            ("0 2,23 * * 1,4", timedelta(hours=21)),
            ("@weekly", 7 * DAY),
            ("@monthly", 28 * DAY),
            ("0 0 31 * *", 31 * DAY),
            ("0 0 L * *", 28 * DAY),
            ("0 0 1,15 * *", 14 * DAY),
            ("0 0 * * 1#1", 28 * DAY),
            ("0 0 13 * 5", DAY),
            ("0 0 1 1,7 *", 181 * DAY),
            ("@yearly", 365 * DAY),
            ("0 0 29 2 *", 4 * 365 * DAY + DAY),
            ("0 0 * 2 1#5", 28 * 365 * DAY + 7 * DAY),
        ],
    )
    def test_shortest_interval_is_that_of_the_clock(
        self, expression: str, interval: timedelta
    ) -> None:
        assert Cron(expression, BERLIN).shortest_interval == interval


class TestRunning:
    @pytest.mark.parametrize("zone", ZONES)
    @pytest.mark.parametrize(
        "expression", ["* * * * *", "*/20 * * * *", "0 * * * *", "30 2 * * *", "0,30 1,2,3 * * *"]
    )
    def test_5000_runs_strictly_increase(self, expression: str, zone: str) -> None:
        runs = Cron(expression, zone).preview(utc(2026, 3, 5), 5000)
        assert all(a < b for a, b in pairwise(runs))
        assert {run.tzinfo for run in runs} == {UTC}

    def test_fixed_time_runs_once_a_day_for_5000_days(self) -> None:
        runs = Cron("30 2 * * *", BERLIN).preview(utc(2026, 1, 1), 5000)
        days = [run.astimezone(ZoneInfo(BERLIN)).date() for run in runs]
        assert all(b - a == DAY for a, b in pairwise(days))

    def test_run_at_the_very_moment_is_not_after_it(self) -> None:
        cron = Cron("0 9 * * *", "UTC")
        nine = utc(2026, 5, 1, 9)
        assert cron.next_after(nine - timedelta(microseconds=1)) == nine
        assert cron.next_after(nine) == nine + DAY

    def test_moment_in_any_zone_means_the_same(self) -> None:
        # The second 02:15 of the night, which compares as earlier than the first 02:30.
        repeated = datetime(2026, 10, 25, 2, 15, tzinfo=ZoneInfo(BERLIN), fold=1)
        for expression in ("0 * * * *", "30 2 * * *", "20 */1 * * *", "45 1,2,3 * * *"):
            cron = Cron(expression, BERLIN)
            assert cron.next_after(repeated) == cron.next_after(repeated.astimezone(UTC))
            assert cron.next_after(repeated) > repeated.astimezone(UTC)

    def test_refuses_a_naive_moment(self) -> None:
        with pytest.raises(ValueError, match="time zone"):
            Cron("0 9 * * *", "UTC").next_after(datetime(2026, 1, 1))  # noqa: DTZ001

    def test_leap_day_comes_every_four_years_and_not_in_2100(self) -> None:
        runs = Cron("0 0 29 2 *", PARIS).preview(utc(2090, 1, 1), 3)
        assert [run.astimezone(ZoneInfo(PARIS)).date() for run in runs] == [
            date(2092, 2, 29),
            date(2096, 2, 29),
            date(2104, 2, 29),
        ]

    @PATIENTLY
    @given(expressions(), st.sampled_from(ZONES), MOMENTS, st.integers(0, 40 * 24 * 60))
    def test_last_between_is_the_last_of_all(
        self, expression: str, zone: str, after: datetime, minutes: int
    ) -> None:
        cron = cron_or_reject(expression, zone)
        until = after + minutes * MINUTE
        last = cron.last_between(after, until)
        if last is None:
            assert cron.next_after(after) > until
        else:
            assert after < last <= until < cron.next_after(last)

    def test_last_between_includes_its_end_and_not_its_beginning(self) -> None:
        cron, nine = Cron("0 9 * * *", "UTC"), utc(2026, 5, 1, 9)
        assert cron.last_between(nine - DAY, nine) == nine
        assert cron.last_between(nine, nine + DAY - MINUTE) is None


class TestClockChanges:
    """By hand: each case is a row of a table that anybody can check with a calendar."""

    @pytest.mark.parametrize(
        ("expression", "zone", "day", "runs"),
        [
            ("0 9 * * *", NEW_YORK, date(2026, 3, 7), ["09:00-0500"]),
            ("0 9 * * *", NEW_YORK, date(2026, 3, 8), ["09:00-0400"]),
            ("0 9 * * *", NEW_YORK, date(2026, 10, 31), ["09:00-0400"]),
            ("0 9 * * *", NEW_YORK, date(2026, 11, 1), ["09:00-0500"]),
            ("30 2 * * *", PARIS, date(2026, 3, 28), ["02:30+0100"]),
            ("30 2 * * *", PARIS, date(2026, 3, 29), ["03:00+0200"]),
            ("30 2 * * *", PARIS, date(2026, 3, 30), ["02:30+0200"]),
            ("30 2 * * *", PARIS, date(2026, 10, 25), ["02:30+0200"]),
            ("30 2 * * *", PARIS, date(2026, 10, 26), ["02:30+0100"]),
            # Skipped times that fall on one moment are one run, also with a time that exists.
            ("0,20,40 2 * * *", PARIS, date(2026, 3, 29), ["03:00+0200"]),
            ("30 2,3 * * *", PARIS, date(2026, 3, 29), ["03:00+0200", "03:30+0200"]),
            ("0 2,3 * * *", PARIS, date(2026, 3, 29), ["03:00+0200"]),
            ("0 2,3 * * *", PARIS, date(2026, 10, 25), ["02:00+0200", "03:00+0100"]),
            # By elapsed time: a star before minute or hour.
            (
                "*/30 1,2,3 * * *",
                PARIS,
                date(2026, 3, 29),
                ["01:00+0100", "01:30+0100", "03:00+0200", "03:30+0200"],
            ),
            ("*/30 2 * * *", PARIS, date(2026, 3, 29), []),
            (
                "*/30 2 * * *",
                PARIS,
                date(2026, 10, 25),
                ["02:00+0200", "02:30+0200", "02:00+0100", "02:30+0100"],
            ),
            # Half an hour: 02:00 becomes 02:30 in spring and 01:30 in autumn.
            ("10 2 * * *", LORD_HOWE, date(2026, 10, 4), ["02:30+1100"]),
            ("40 1 * * *", LORD_HOWE, date(2026, 4, 5), ["01:40+1100"]),
            (
                "*/20 1,2 * * *",
                LORD_HOWE,
                date(2026, 10, 4),
                ["01:00+1030", "01:20+1030", "01:40+1030", "02:40+1100"],
            ),
            (
                "*/20 1 * * *",
                LORD_HOWE,
                date(2026, 4, 5),
                ["01:00+1100", "01:20+1100", "01:40+1100", "01:40+1030"],
            ),
            # Midnight itself is skipped.
            ("0 0 * * *", "Africa/Cairo", date(2026, 4, 24), ["01:00+0300"]),
            ("@daily", SAO_PAULO, date(2018, 11, 4), ["01:00-0200"]),
            # Two hours, and a whole day.
            ("30 1 * * *", "Antarctica/Troll", date(2026, 3, 29), ["03:00+0200"]),
            ("0 9 * * *", "Pacific/Apia", date(2011, 12, 31), ["00:00+1400", "09:00+1400"]),
        ],
    )
    def test_runs_of_a_day(self, expression: str, zone: str, day: date, runs: list[str]) -> None:
        assert runs_on(expression, zone, day) == runs

    @pytest.mark.parametrize(("day", "hours"), [(date(2026, 3, 29), 23), (date(2026, 10, 25), 25)])
    def test_every_five_minutes_goes_on_without_a_gap(self, day: date, hours: int) -> None:
        assert len(runs_on("*/5 * * * *", PARIS, day)) == 12 * hours
        start = datetime(day.year, day.month, day.day, tzinfo=UTC) - DAY
        runs = Cron("*/5 * * * *", PARIS).preview(start, 3 * 288)
        assert {b - a for a, b in pairwise(runs)} == {5 * MINUTE}

    @pytest.mark.parametrize(
        ("day", "runs"), [(date(2026, 10, 4), 70), (date(2026, 4, 5), 73)], ids=["spring", "autumn"]
    )
    def test_every_twenty_minutes_at_lord_howe_loses_no_slot(self, day: date, runs: int) -> None:
        # A day of 23.5 hours has no 02:00 and 02:20; one of 24.5 hours has 01:40 twice.
        assert len(runs_on("*/20 * * * *", LORD_HOWE, day)) == runs

    def test_fixed_time_is_over_in_the_second_of_two_hours(self) -> None:
        asked = datetime(2026, 10, 25, 2, 15, tzinfo=ZoneInfo(BERLIN), fold=1)
        assert Cron("30 2 * * *", BERLIN).next_after(asked) == utc(2026, 10, 26, 1, 30)
        assert Cron("0,30 2,3 * * *", BERLIN).next_after(asked) == utc(2026, 10, 25, 2)

    def test_second_occurrences_are_not_lost_for_times_that_are_over(self) -> None:
        # Asked at 02:45, between the two half hours that are still to be repeated, on a date
        # that comes again only in a year.
        asked = datetime(2026, 10, 25, 2, 45, tzinfo=ZoneInfo(BERLIN), fold=0)
        runs = Cron("*/30 2 25 10 *", BERLIN).preview(asked, 3)
        assert runs == [utc(2026, 10, 25, 1), utc(2026, 10, 25, 1, 30), utc(2027, 10, 25, 0)]


# Days in UTC at which clocks change: by an hour, by half an hour, by two, at midnight, by a day.
CHANGES = [
    (NEW_YORK, utc(2026, 3, 8)),
    (NEW_YORK, utc(2026, 11, 1)),
    (BERLIN, utc(2028, 3, 26)),
    (BERLIN, utc(2028, 10, 29)),
    (LORD_HOWE, utc(2027, 4, 3)),
    (LORD_HOWE, utc(2027, 10, 2)),
    ("Antarctica/Troll", utc(2026, 3, 29)),
    ("Antarctica/Troll", utc(2026, 10, 25)),
    ("Africa/Cairo", utc(2026, 4, 23)),
    ("Africa/Cairo", utc(2026, 10, 29)),
    (SAO_PAULO, utc(2018, 11, 4)),
    (SAO_PAULO, utc(2018, 2, 18)),
    ("Pacific/Apia", utc(2011, 12, 30)),
]


def named_times(expression: str, start: datetime, end: datetime) -> Iterator[datetime]:
    """Yield what croniter finds on a clock that is never changed."""
    theirs = croniter_like_cron(expression, start - MINUTE)
    while (time := theirs.get_next()) <= end:
        yield time


def by_brute_force(expression: str, zone: str, start: datetime, end: datetime) -> set[datetime]:
    """Look at a clock on the wall, minute by minute, and write down when to run."""
    minutes = [start + passed * MINUTE for passed in range(int((end - start) / MINUTE))]
    walls = [minute.astimezone(ZoneInfo(zone)).replace(tzinfo=None) for minute in minutes]
    named = list(named_times(expression, min(walls), max(walls)))
    if "*" in {field[0] for field in expression.split()[:2]}:
        wanted = set(named)
        return {minute for minute, wall in zip(minutes, walls, strict=True) if wall in wanted}
    runs, place = set(), 0
    for time in named:
        while walls[place] < time:
            place += 1
        runs.add(minutes[place])
    return runs


@settings(PATIENTLY, max_examples=40)
@given(expressions(), st.sampled_from(CHANGES))
@example("* * * * *", CHANGES[4])
@example("0-59 0-23 * * *", CHANGES[5])
@example("*/20 * * * *", CHANGES[4])
@example("0 */2 * * *", CHANGES[2])
@example("*/15 2 * * *", CHANGES[2])
@example("0 0 * * *", CHANGES[8])
@example("0 9 30 12 *", CHANGES[-1])
def test_runs_are_those_that_a_clock_on_the_wall_shows(
    expression: str, change: tuple[str, datetime]
) -> None:
    zone, day = change
    cron = cron_or_reject(expression, zone)
    start, end = day - timedelta(hours=12), day + timedelta(hours=36)
    expected = by_brute_force(expression, zone, start, end)
    found = set()
    run = start - timedelta(microseconds=1)
    while (run := cron.next_after(run)) < end:
        found.add(run)
    assert found == expected


def differs_from_cronsim(expression: str, zone: str, run: datetime) -> bool:
    """Tell where cronsim is known to be wrong: it steps by hours over half an hour's change."""
    elapsed = "*" in {field[0] for field in expression.split()[:2]}
    local = run.astimezone(ZoneInfo(zone))
    around = (run - DAY).astimezone(local.tzinfo), (run + DAY).astimezone(local.tzinfo)
    return elapsed and zone == LORD_HOWE and around[0].utcoffset() != around[1].utcoffset()


@PATIENTLY
@given(expressions(), st.sampled_from(ZONES), MOMENTS)
@example("30 2 * * *", BERLIN, utc(2026, 10, 20))
@example("0 */2 * * *", BERLIN, utc(2026, 3, 28))
@example("0,30 1,2 * * *", NEW_YORK, utc(2026, 11, 1))
@example("10 2 * * *", LORD_HOWE, utc(2026, 10, 2))
def test_agrees_with_cronsim(expression: str, zone: str, moment: datetime) -> None:
    cron = cron_or_reject(expression, zone)
    local = moment.replace(microsecond=0).astimezone(ZoneInfo(zone))
    # Begun inside a repeated hour, cronsim forgets which of the two it is.
    assume(local.utcoffset() == (moment - DAY).astimezone(local.tzinfo).utcoffset())
    theirs = CronSim(expression, local if zone != "UTC" else moment)
    for run in cron.preview(moment, 60):
        expected = next(theirs).astimezone(UTC)
        if run != expected and differs_from_cronsim(expression, zone, run):
            break
        assert run == expected


@pytest.mark.parametrize(
    ("expression", "days"),
    [
        # Both, where one begins with a star.
        ("0 0 */2 * 1", [5, 19]),
        ("0 0 13 * */1", [13]),
        ("0 0 */5 * 0-6", [6, 11, 16, 21, 26, 31]),
        ("0 0 *,3 * 1", [5, 12, 19, 26]),
        ("0 0 13 * *,1", [13]),
        # Either, where none does.
        ("0 0 13 * 1,*", list(range(2, 32))),
        ("0 0 1-31 * 1", list(range(2, 32))),
        ("0 0 13 * 5", [2, 9, 13, 16, 23, 30]),
    ],
)
def test_the_days_are_those_of_cron(expression: str, days: list[int]) -> None:
    runs = Cron(expression, "UTC").preview(utc(2026, 1, 1), 40)
    assert [run.day for run in runs if run < utc(2026, 2, 1)] == days
    theirs = CronSim(expression, utc(2026, 1, 1))
    assert [next(theirs) for _ in runs] == runs


def test_a_month_without_the_day_has_the_weekday() -> None:
    assert Cron("0 0 31 4 1", "UTC").next_after(utc(2026, 1, 1)) == utc(2026, 4, 6)
    with pytest.raises(ValueError, match="never"):
        Cron("0 0 31 4 */2", "UTC")


class TestDifferencesToCronsim:
    """What the generated expressions above leave out, one of each kind."""

    def test_a_question_mark_is_a_star(self) -> None:
        assert Cron("0 0 13 * ?", "UTC").next_after(utc(2026, 1, 1)) == utc(2026, 1, 13)

    @pytest.mark.parametrize(
        ("expression", "same"),
        [
            ("*/60 * * * *", "0 * * * *"),
            ("5/60 * * * *", "5 * * * *"),
            ("10-20/11 * * * *", "10 * * * *"),
            ("0 */24 * * *", "0 0 * * *"),
            ("0 0 */31 * *", "0 0 1 * *"),
            ("0 0 1 */12 *", "0 0 1 1 *"),
            ("0 0 * * */7", "0 0 * * 0"),
        ],
    )
    def test_a_step_over_the_whole_field_is_its_first_value(
        self, expression: str, same: str
    ) -> None:
        start = utc(2026, 5, 4)
        assert Cron(expression, "UTC").preview(start, 5) == Cron(same, "UTC").preview(start, 5)

    def test_week_ends_with_saturday_for_steps(self) -> None:
        assert utc(2026, 1, 4) not in Cron("0 0 * * 5/2", "UTC").preview(utc(2026, 1, 1), 2)
        assert next(CronSim("0 0 * * 5/2", utc(2026, 1, 2))) == utc(2026, 1, 4)

    def test_last_weekday_is_written_with_the_letter_first(self) -> None:
        last_friday = Cron("0 0 * * L5", "UTC").next_after(utc(2026, 1, 1))
        assert last_friday == next(CronSim("0 0 * * 5L", utc(2026, 1, 1))) == utc(2026, 1, 30)

    def test_half_an_hour_at_lord_howe_moves_no_minutes(self) -> None:
        before = utc(2026, 4, 4, 13)
        there = ZoneInfo(LORD_HOWE)
        ours = Cron("*/7 12 * * *", LORD_HOWE).next_after(before)
        theirs = next(CronSim("*/7 12 * * *", before.astimezone(there)))
        assert (ours.astimezone(there).hour, ours.astimezone(there).minute) == (12, 0)
        assert (theirs.hour, theirs.minute) == (12, 35)


PAGE = Path(__file__).parent.parent / "docs" / "howto" / "schedules-and-clock-changes.md"
ROW = re.compile(r"^\| `([^`]+)` \| ([\w/]+) \| (\d{4}-\d\d-\d\d) \| ([^|]+) \|$", re.MULTILINE)


def test_page_says_what_runs_when() -> None:
    rows = ROW.findall(PAGE.read_text())
    assert len(rows) > 20
    for expression, zone, day, said in rows:
        runs = runs_on(expression, zone, date.fromisoformat(day))
        shown = [f"{run[:-2]}:{run[-2:]}" for run in runs]
        assert said in (", ".join(shown) or "never", f"{len(runs)} times"), (expression, zone, day)
