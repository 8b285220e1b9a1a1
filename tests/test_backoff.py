"""The wait between attempts."""

import math
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_durable.backoff import LONGEST, Backoff

DURATIONS = st.timedeltas(timedelta(0), LONGEST)
BACKOFFS = st.builds(
    Backoff,
    initial=DURATIONS,
    factor=st.floats(1, allow_infinity=False) | st.integers(1, 10**300),
    maximum=DURATIONS,
    jitter=st.floats(0, 1),
)


def middle() -> float:
    return 0.5


def test_defaults_are_those_of_the_reference() -> None:
    backoff = Backoff()

    waits = [backoff.delay(attempt, middle).total_seconds() for attempt in (1, 2, 3, 11, 12, 13)]
    assert waits == [2, 4, 8, 2048, 3600, 3600]
    assert backoff.delay(1, lambda: 0.0) == timedelta(seconds=1.8)
    assert backoff.delay(1, lambda: 1.0) == timedelta(seconds=2.2)


def test_jitter_is_drawn_after_the_cap() -> None:
    backoff = Backoff(initial=timedelta(hours=5), maximum=timedelta(hours=1), jitter=0.5)

    assert backoff.delay(9, lambda: 0.0) == timedelta(minutes=30)
    assert backoff.delay(9, lambda: 1.0) == timedelta(minutes=90)


def test_without_jitter_every_wait_is_exact() -> None:
    backoff = Backoff(initial=timedelta(milliseconds=100), factor=1, jitter=0)

    assert {backoff.delay(attempt) for attempt in range(1, 50)} == {timedelta(milliseconds=100)}


def test_own_randomness_stays_within_the_jitter() -> None:
    waits = [Backoff().delay(1).total_seconds() for _ in range(200)]

    assert 1.8 <= min(waits) < max(waits) <= 2.2


@given(BACKOFFS, st.integers(1, 10**9), st.floats(0, 1))
def test_no_attempt_is_too_high(backoff: Backoff, attempt: int, chance: float) -> None:
    wait = backoff.delay(attempt, lambda: chance)

    assert (
        timedelta(0) <= wait <= backoff.maximum * (1 + backoff.jitter) + timedelta(milliseconds=1)
    )
    if not backoff.initial:
        assert not wait


@given(BACKOFFS)
def test_stored_form_reads_back_as_the_same_policy(backoff: Backoff) -> None:
    again = Backoff.from_json(backoff.to_json())

    assert (again.factor, again.jitter) == (float(backoff.factor), backoff.jitter)
    for name in ("initial", "maximum"):
        difference = getattr(again, name) - getattr(backoff, name)
        assert abs(difference) <= timedelta(microseconds=1)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"initial": timedelta(seconds=-1)}, "initial"),
        ({"initial": timedelta.max}, "initial"),
        ({"maximum": timedelta(seconds=-1)}, "maximum"),
        ({"factor": 0.5}, "factor"),
        ({"factor": math.nan}, "factor"),
        ({"factor": math.inf}, "factor"),
        ({"factor": 10**400}, "factor"),
        ({"jitter": -0.1}, "jitter"),
        ({"jitter": 1.1}, "jitter"),
        ({"jitter": math.nan}, "jitter"),
    ],
    ids=range(10),
)
def test_value_out_of_range_is_refused_by_name(given: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        Backoff(**given)


@pytest.mark.parametrize("name", ["initial", "maximum"])
def test_duration_that_is_no_timedelta_is_a_type_error(name: str) -> None:
    with pytest.raises(TypeError, match=f"{name} must be a timedelta, not int"):
        Backoff(**{name: 5})  # type: ignore[arg-type]


def test_attempts_are_counted_from_one() -> None:
    with pytest.raises(ValueError, match="counted from 1"):
        Backoff().delay(0)


@pytest.mark.parametrize(
    "stored",
    [{}, {"initial": 1}, {**Backoff().to_json(), "factor": "many"}, None,
     {**Backoff().to_json(), "maximum": 1e300}, {**Backoff().to_json(), "jitter": 2}],
    ids=range(6),
)  # fmt: skip
def test_stored_form_that_is_none_is_a_value_error(stored: Any) -> None:
    with pytest.raises(ValueError, match="not a stored backoff"):
        Backoff.from_json(stored)
