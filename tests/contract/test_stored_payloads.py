"""Contract, section 10: values as arguments and as results, by way of the database.

The codec itself is tested in tests/test_payloads.py.
"""

from __future__ import annotations

import enum
import math
from collections import OrderedDict, defaultdict, namedtuple
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from django.contrib.auth.models import Group
from django.db import connection
from django.test import override_settings
from django.utils.safestring import mark_safe
from django.utils.translation import gettext_lazy

from django_durable import PayloadError, Priority, job
from django_durable.models import DeadLetter, Job
from tests.contract.running import run

pytestmark = pytest.mark.django_db

MIB = 1024 * 1024


class Size(enum.Enum):
    SMALL = "small"


class Access(enum.Flag):
    READ = 1
    WRITE = 2


Point = namedtuple("Point", "x y")


@pytest.fixture
def echo() -> Any:
    @job(name="payloads.echo", max_attempts=1)
    def echo(value: Any = None, *, other: Any = None) -> Any:
        return value

    return echo


KEPT: list[Any] = [
    "text with 'quotes', \n lines, ünïcödé and 🚲",
    "",
    0,
    -1,
    2**53 + 1,
    10**400,
    True,
    False,
    None,
    1.5,
    0.1,
    1e16,
    1e300,
    5e-324,
    -0.0,
    [],
    {},
    [1, [2, {"a": [None]}]],
    {"a": 1, "ä": {"": []}},
    {"$": "a dict that looks like a tag"},
    datetime(2026, 3, 29, 2, 30),  # noqa: DTZ001 - naive is one of the cases
    datetime(2026, 3, 29, 2, 30, 0, 123456, tzinfo=UTC),
    datetime(2026, 3, 29, 2, 30, tzinfo=timezone(timedelta(hours=5, minutes=45))),
    datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"), fold=1),
    date(2026, 2, 28),
    time(23, 59, 59, 999999),
    timedelta(days=-1, microseconds=1),
    Decimal("1.10"),
    Decimal("1E+3"),
    UUID("00000000-0000-7000-8000-000000000001"),
    b"\x00\xff",
    (),
    (1, "two", (3,)),
    {1, 2, 3},
    frozenset({"a", (1, 2)}),
    Size.SMALL,
    Priority.HIGH,
    Access.READ | Access.WRITE,
    [(1, {2}), {"a": Decimal(1), "b": [Size.SMALL, b""]}],
]


def same(value: Any, other: Any) -> bool:
    """Tell equality of types, signs, folds and order too."""
    if type(value) is not type(other):
        return False
    if isinstance(value, float):
        return math.copysign(1, value) == math.copysign(1, other) and value == other
    if isinstance(value, datetime | time):
        return (value, value.fold, repr(value.tzinfo)) == (other, other.fold, repr(other.tzinfo))
    if isinstance(value, list | tuple):
        return len(value) == len(other) and all(map(same, value, other))
    if isinstance(value, dict):
        return list(value) == list(other) and all(map(same, value.values(), other.values()))
    if isinstance(value, Decimal):
        return value.as_tuple() == other.as_tuple()
    equal: bool = value == other
    return equal


# Numbered, since the text of a set differs from process to process.
@pytest.mark.parametrize(
    "value", KEPT, ids=[f"{number} {type(value).__name__}" for number, value in enumerate(KEPT)]
)
def test_value_comes_back_as_the_same_type_and_value(echo: Any, value: Any) -> None:
    made = echo.enqueue(value, other={"in": [value]})

    assert same(made.args, [value])
    found = Job.objects.get(pk=made.pk)
    assert same(found.args, [value])
    assert same(found.kwargs, {"other": {"in": [value]}})
    assert same(run(made).result(), value)
    assert same(echo.enqueue_many([((value,), {})])[0].args, [value])


PLAIN: list[tuple[Any, Any]] = [
    (gettext_lazy("Monday"), "Monday"),
    (mark_safe("<b>safe</b>"), "<b>safe</b>"),
    (Point(1, 2), (1, 2)),
    (OrderedDict(a=1), {"a": 1}),
    (defaultdict(list, a=[1]), {"a": [1]}),
    (type("Text", (str,), {})("x"), "x"),
    (type("Number", (int,), {})(7), 7),
]


@pytest.mark.parametrize(("value", "plain"), PLAIN, ids=lambda value: type(value).__name__)
def test_lazy_strings_and_subclasses_become_the_plain_type(
    echo: Any, value: Any, plain: Any
) -> None:
    made = echo.enqueue(value)

    assert same(made.args, [plain])
    assert same(run(made).result(), plain)

    @job
    def give() -> Any:
        return value

    assert same(run(give.enqueue()).result(), plain)


REFUSED: list[tuple[Any, str]] = [
    ({1: "a"}, "has a key of type int; keys must be str"),
    ({None: "a"}, "keys must be str"),
    (float("nan"), "is nan"),
    (float("inf"), "is inf"),
    (-float("inf"), "is -inf"),
    (Decimal("NaN"), "which is no number"),
    ("a\x00b", "NUL character"),
    ({"a\x00b": 1}, "contains a NUL"),
    ("\udce9", "lone surrogate"),
    (object(), "is of type builtins.object"),
    (print, "builtin_function_or_method"),
    (1j, "complex"),
    (bytearray(b"x"), "bytearray"),
    (Group(pk=1), "is a model instance (django.contrib.auth.models.Group): pass the primary key"),
    (Group.objects.all(), "is a queryset"),
    (enum.Enum("Local", "A").A, "can't import"),
    ("x" * (MIB + 1), "more than the 1,048,576 of DURABLE_MAX_PAYLOAD"),
]


@pytest.mark.parametrize(("value", "why"), REFUSED, ids=[why for _value, why in REFUSED])
def test_value_that_cannot_be_kept_is_refused_and_named(echo: Any, value: Any, why: str) -> None:
    for call in (
        lambda: echo.enqueue(value),
        lambda: echo.enqueue(value=value),
        lambda: echo.using(idempotency_key="k").enqueue(value),
        lambda: echo.enqueue_many([((1,), {}), ((value,), {})]),
    ):
        with pytest.raises(PayloadError) as caught:
            call()
        assert isinstance(caught.value, TypeError)
        assert str(caught.value).startswith("argument 'value'")
        assert why in str(caught.value)
    assert not Job.objects.exists()


def test_refusal_names_the_place_in_the_argument(echo: Any) -> None:
    with pytest.raises(PayloadError, match=r"^argument 'other'\.rows\[1\] is of type"):
        echo.enqueue(1, other={"rows": [0, object()]})


@pytest.mark.parametrize(("value", "why"), REFUSED, ids=[why for _value, why in REFUSED])
def test_result_that_cannot_be_kept_is_a_permanent_failure_that_says_so(
    value: Any, why: str
) -> None:
    @job
    def give() -> Any:
        return value

    dead = run(give.enqueue())

    assert (dead.status, dead.attempt) == (Job.Status.DEAD, 1)
    letter = DeadLetter.objects.get()
    assert (letter.reason, letter.error_class) == ("unstorable", "PayloadError")
    assert letter.message.startswith("the result")
    assert why in letter.message


def test_limit_counts_all_arguments_together_and_is_a_setting(echo: Any) -> None:
    half = "x" * (MIB // 2)
    assert run(echo.enqueue(half)).result() == half
    with pytest.raises(PayloadError, match="DURABLE_MAX_PAYLOAD"):
        echo.enqueue(half, other=half)

    with override_settings(DURABLE_MAX_PAYLOAD=3 * MIB):
        assert run(echo.enqueue(4 * half)).result() == 4 * half
    with override_settings(DURABLE_MAX_PAYLOAD=100), pytest.raises(PayloadError):
        echo.enqueue("x" * 100)


@pytest.mark.parametrize("megabytes", [20, 50])
def test_huge_values_are_refused_without_a_word_to_the_database(
    echo: Any, megabytes: int, django_assert_num_queries: Any
) -> None:
    with django_assert_num_queries(0), pytest.raises(PayloadError, match="DURABLE_MAX_PAYLOAD"):
        echo.enqueue("x" * (megabytes * MIB))

    @job
    def give() -> str:
        return "x" * (megabytes * MIB)

    assert run(give.enqueue()).dead_letter.reason == "unstorable"


def test_arguments_of_a_job_are_never_changed_by_what_the_function_does_to_them() -> None:
    seen = []

    @job
    def spoil(rows: list[int], *, options: dict[str, Any]) -> None:
        seen.append((list(rows), dict(options)))
        rows.append(99)
        options["spoilt"] = True
        raise ValueError

    made = run(spoil.enqueue([1, 2], options={}))
    made.run_now()
    run(made)

    assert seen == [([1, 2], {}), ([1, 2], {})]
    assert Job.objects.get().args == [[1, 2]]
    assert Job.objects.get().kwargs == {"options": {}}


def test_what_is_stored_is_json_text() -> None:
    @job
    def echo(value: Any) -> Any:
        return value

    run(echo.enqueue({"a": [1, 1e16, "ü"]}))
    with connection.cursor() as cursor:
        cursor.execute("SELECT args::json ->> 0, return_value::json ->> 'a' FROM durable_job")
        assert cursor.fetchone() == ('{"a":[1,1e+16,"ü"]}', '[1,1e+16,"ü"]')


def test_stored_text_can_name_no_callable(echo: Any) -> None:
    for path in ("os:system", "builtins:eval", "django.conf:settings"):
        text = f'[{{"$":["enum","{path}","id"]}}]'
        made = echo.enqueue(1)
        with connection.cursor() as cursor:
            cursor.execute("UPDATE durable_job SET args = %s WHERE id = %s", [text, made.pk])
        assert run(made).dead_letter.reason == "undecodable"
