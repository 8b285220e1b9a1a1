"""Durations and rates as text."""

import math
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_durable.durations import format_duration, parse_duration, parse_rate, seconds


@pytest.mark.parametrize(
    ("text", "duration"),
    [
        ("30s", timedelta(seconds=30)),
        ("5m", timedelta(minutes=5)),
        ("2h", timedelta(hours=2)),
        ("1d", timedelta(days=1)),
        ("1.5", timedelta(seconds=1.5)),
        ("0", timedelta(0)),
        (".5h", timedelta(minutes=30)),
        (" 3s ", timedelta(seconds=3)),
        (90, timedelta(seconds=90)),
        (0.25, timedelta(milliseconds=250)),
    ],
)
def test_duration_is_a_number_with_a_unit_or_seconds(text: Any, duration: timedelta) -> None:
    assert parse_duration(text) == duration


@pytest.mark.parametrize(
    "text",
    ["", "s", "5x", "5 m", "-5s", -1, "1h30m", "1e3", "nan", "inf", math.nan, math.inf, "٣s", "1.s",
     "99999999999999d", 10**400, True, None, [1], "5S", "1_000", "9" * 5_000],
    ids=range(22),
)  # fmt: skip
def test_other_text_is_a_value_error_that_says_how_to_write_it(text: Any) -> None:
    with pytest.raises(ValueError, match="is not a duration: write seconds") as caught:
        parse_duration(text)

    assert len(str(caught.value)) < 200


def test_rate_is_a_count_and_a_window() -> None:
    assert parse_rate("100/m") == (100, timedelta(minutes=1))
    assert parse_rate("1/s").window == timedelta(seconds=1)
    assert parse_rate("5000/h").limit == 5000
    assert parse_rate("2147483647/d") == (2**31 - 1, timedelta(days=1))


@pytest.mark.parametrize(
    "text",
    ["", "100", "0/s", "-1/s", "1/x", "1/", "/s", "1.5/s", "2147483648/s", "1 / s", 5, None, "٣/s"],
    ids=range(13),
)
def test_other_rate_is_a_value_error(text: Any) -> None:
    with pytest.raises(ValueError, match="is not a rate: write a whole number"):
        parse_rate(text)


@pytest.mark.parametrize(
    ("duration", "text"),
    [
        (timedelta(0), "0 s"),
        (timedelta(microseconds=1), "1 ms"),
        (timedelta(milliseconds=340), "340 ms"),
        (timedelta(milliseconds=999.6), "1 s"),
        (timedelta(seconds=1.54), "1.5 s"),
        (timedelta(seconds=9.96), "10 s"),
        (timedelta(seconds=45), "45 s"),
        (timedelta(seconds=59.6), "1 m"),
        (timedelta(seconds=65), "1 m 5 s"),
        (timedelta(hours=1, minutes=5, seconds=7), "1 h 5 m"),
        (timedelta(hours=1, seconds=7), "1 h"),
        (timedelta(days=3, hours=4), "3 d 4 h"),
        (timedelta(days=400), "400 d"),
        (timedelta(seconds=-90), "-1 m 30 s"),
    ],
)
def test_duration_is_shown_in_its_two_largest_units(duration: timedelta, text: str) -> None:
    assert format_duration(duration) == text


@given(st.timedeltas())
def test_every_duration_can_be_shown(duration: timedelta) -> None:
    assert 3 <= len(format_duration(duration)) < 20


@given(st.timedeltas(timedelta(0), timedelta(days=10_000)))
def test_seconds_are_read_back(duration: timedelta) -> None:
    again = parse_duration(f"{duration.total_seconds():.6f}")

    assert abs(again - duration) <= timedelta(microseconds=1)
    assert seconds(duration) == duration.total_seconds()


def test_timeout_is_seconds_or_a_timedelta_or_none() -> None:
    assert seconds(None) is None
    assert seconds(timedelta(minutes=1)) == 60.0
    assert seconds(0) == 0.0
    assert seconds(2.5) == 2.5


@pytest.mark.parametrize(
    "value", [-1, timedelta(-1), math.nan, math.inf, 1e300, 10**400], ids=range(6)
)
def test_timeout_out_of_range_is_a_value_error(value: Any) -> None:
    with pytest.raises(ValueError, match="a timeout must be from 0 on and finite"):
        seconds(value)


@pytest.mark.parametrize("value", ["5s", True, [5]], ids=range(3))
def test_timeout_of_another_type_is_a_type_error(value: Any) -> None:
    with pytest.raises(TypeError, match="a timeout is a number of seconds, a timedelta or None"):
        seconds(value)
