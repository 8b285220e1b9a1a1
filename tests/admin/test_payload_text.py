"""Payloads as text for people."""

from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest

from django_durable.admin.payload_text import payload_text
from django_durable.choices import JobStatus
from django_durable.fields import Undecodable


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (True, "true"),
        (-0.0, "-0.0"),
        (1e16, "1e+16"),
        (7, "7"),
        ("ä\n\"'", '"ä\\n\\"\'"'),
        ([], "[]"),
        ({}, "{}"),
        ((), "()"),
        (Decimal("1.10"), 'Decimal("1.10")'),
        (UUID(int=1), 'UUID("00000000-0000-0000-0000-000000000001")'),
        (b"\x00a", "b'\\x00a'"),
        (timedelta(hours=1), 'timedelta("1:00:00")'),
        (date(2026, 11, 29), 'date("2026-11-29")'),
        (time(1, 2), 'time("01:02:00")'),
        (datetime(2026, 11, 29, tzinfo=UTC), 'datetime("2026-11-29T00:00:00+00:00")'),
        (
            datetime(2026, 11, 29, tzinfo=ZoneInfo("Europe/Berlin")),
            'datetime("2026-11-29T00:00:00+01:00[Europe/Berlin]")',
        ),
        (JobStatus.READY, "JobStatus.READY"),
        ([1, {"a": (2,)}], '[\n  1,\n  {\n    "a": (\n      2\n    )\n  }\n]'),
        ({3}, "{\n  3\n}"),
        (frozenset([3]), "frozenset({\n  3\n})"),
    ],
)
def test_each_type_is_told_apart(value, text):
    assert payload_text(value) == (text, False)


def test_an_integer_too_long_for_decimals_is_shown_in_hexadecimal():
    assert payload_text(10**5000) == (hex(10**5000), False)


def test_no_more_is_looked_at_than_fits():
    class Trap(list):
        def __iter__(self):
            yield from range(100)
            raise AssertionError("looked at too much")

    value = [list(range(100))]
    assert payload_text(value, 10) == ("[\n  [\n    ", True)
    assert payload_text(value, 10_000)[1] is False
    huge = [0] * 1_000_000
    text, cut = payload_text(huge, 1000)
    assert (len(text), cut) == (1000, True)


def test_what_cannot_be_decoded_gives_its_reason_and_text():
    value = Undecodable("raw <text>", "no JSON")
    assert payload_text(value) == ("cannot be decoded: no JSON\nraw <text>", False)
