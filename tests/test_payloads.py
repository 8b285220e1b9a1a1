"""The codec: what goes in comes out, with its type, or is refused by name."""

import collections
import enum
import functools
import io
import json
import math
import subprocess
import sys
import uuid
import zoneinfo
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.http import QueryDict
from django.utils.functional import SimpleLazyObject, lazy
from django.utils.safestring import mark_safe
from django.utils.translation import gettext_lazy, override
from hypothesis import given
from hypothesis import strategies as st

from django_durable.choices import JobStatus, Priority
from django_durable.exceptions import DurableError, PayloadDecodeError, PayloadError
from django_durable.payloads import (
    argument_names,
    bind_arguments,
    decode,
    encode,
    encode_arguments,
)

LIMIT = 1024 * 1024


class Colour(enum.Enum):
    RED = "red"
    CRIMSON = "red"  # an alias # noqa: PIE796
    ODD = ("any", Decimal(1))


class Size(enum.StrEnum):
    SMALL = "s"


class Level(enum.IntEnum):
    LOW = 1


class Access(enum.Flag):
    READ = enum.auto()
    WRITE = enum.auto()
    BOTH = READ | WRITE
    RUN = enum.auto()


class Bits(enum.IntFlag):
    ONE = 1
    TWO = 2


class Outer:
    class Inner(enum.Enum):
        DEEP = 1


class NotAnEnum:
    called = False

    def __init__(self, *args: object) -> None:
        type(self).called = True


class Point(NamedTuple):
    x: int
    y: int


class Text(str):
    __slots__ = ()

    def __str__(self) -> str:
        return "something else"


class Number(int):
    def __int__(self) -> int:
        return 7


class Moment(datetime):
    pass


def there_and_back(value: Any) -> Any:
    return decode(encode(value, where="it", limit=LIMIT))


def identity(value: Any) -> Any:
    """Something that is equal exactly for values of equal type, content, order, sign and fold."""
    kind = type(value)
    if isinstance(value, dict):
        return kind, [(key, identity(item)) for key, item in value.items()]
    if isinstance(value, (list, tuple)):
        return kind, [identity(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return kind, sorted(repr(identity(item)) for item in value)
    if isinstance(value, (datetime, time)):
        return kind, repr(value), value.fold, repr(value.tzinfo)
    return kind, hex(value) if kind is int else repr(value)


def refusal(value: Any, limit: int | None = LIMIT) -> str:
    with pytest.raises(PayloadError) as caught:
        encode(value, where="argument 'order'", limit=limit)
    return str(caught.value)


def fixed_offsets() -> st.SearchStrategy[timezone]:
    almost_a_day = timedelta(days=1) - timedelta(microseconds=1)
    offsets = st.timedeltas(-almost_a_day, almost_a_day)
    names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
    return st.builds(timezone, offsets) | st.builds(timezone, offsets, names)


def zones() -> st.SearchStrategy[tzinfo | None]:
    keys = ["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu"]
    return (
        st.none()
        | st.sampled_from([UTC])
        | fixed_offsets()
        | st.sampled_from([zoneinfo.ZoneInfo(key) for key in keys])
    )


def moments() -> st.SearchStrategy[datetime]:
    return st.builds(
        lambda moment, zone, fold: moment.replace(tzinfo=zone, fold=fold),
        st.datetimes(),
        zones(),
        st.sampled_from([0, 1]),
    )


TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
KEYS = TEXT | st.sampled_from(["$", "", "a b", '"$"', "\\"])
HASHABLE = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(1990, 20_000).map(lambda bits: 1 << bits)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT
    | st.binary()
    | moments()
    | st.dates()
    | st.builds(time.replace, st.times(), tzinfo=zones(), fold=st.sampled_from([0, 1]))
    | st.timedeltas()
    | st.decimals(allow_nan=False, allow_infinity=False)
    | st.uuids()
    | st.sampled_from([*Colour, *Size, *Level, *Access, Outer.Inner.DEEP, Priority.HIGH])
    | st.integers(0, 7).map(Access)
    | st.integers(0, 1000).map(Bits)
)
VALUES = st.recursive(
    HASHABLE | st.frozensets(HASHABLE, max_size=4) | st.sets(HASHABLE, max_size=4),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(KEYS, inner, max_size=4)
        | st.frozensets(st.tuples(HASHABLE, HASHABLE), max_size=3)
    ),
    max_leaves=20,
)


@given(VALUES)
def test_every_value_comes_back_with_its_type(value: Any) -> None:
    text = encode(value, where="it", limit=None)

    assert identity(decode(text)) == identity(value)
    assert "\0" not in text
    text.encode()


@given(VALUES)
def test_text_is_strict_json_and_stable(value: Any) -> None:
    text = encode(value, where="it", limit=None)

    def fail(constant: str) -> None:
        raise AssertionError(constant)

    json.loads(text, parse_constant=fail)
    assert encode(decode(text), where="it", limit=None) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("", '""'),
        ("héé €", '"héé €"'),
        (1, "1"),
        (True, "true"),
        (None, "null"),
        (1e16, "1e+16"),
        (-0.0, "-0.0"),
        (1.0, "1.0"),
        ([1, [2]], "[1,[2]]"),
        ({"a": {}}, '{"a":{}}'),
        ({"$": 1}, '{"$":["dict",[["$",1]]]}'),
        ((1, 2), '{"$":["tuple",[1,2]]}'),
        (Decimal("1.10"), '{"$":["decimal","1.10"]}'),
        (b"\x00\xff", '{"$":["bytes","AP8="]}'),
        (date(2026, 2, 3), '{"$":["date","2026-02-03"]}'),
        (datetime(2026, 2, 3, tzinfo=UTC), '{"$":["datetime","2026-02-03T00:00:00+00:00"]}'),
        (timedelta(days=-1, microseconds=1), '{"$":["timedelta",-1,0,1]}'),
        (Colour.RED, '{"$":["enum","tests.test_payloads:Colour","RED"]}'),
        (Access.READ | Access.RUN, '{"$":["enum","tests.test_payloads:Access",null,5]}'),
    ],
)
def test_stored_text_stays_readable_by_later_versions(value: Any, text: str) -> None:
    assert encode(value, where="it", limit=LIMIT) == text
    assert identity(decode(text)) == identity(value)


FLAT = st.none() | st.booleans() | st.integers() | st.text() | st.sampled_from([10**700, 1.5, "$"])


@given(st.lists(FLAT), st.dictionaries(st.text() | st.just("$"), FLAT))
def test_arguments_without_containers_have_the_text_of_any_other(
    args: list[Any], kwargs: dict[str, Any]
) -> None:
    def slow(value: Any) -> str | None:
        try:
            return encode(value, where="", limit=None)
        except PayloadError:
            return None

    texts = slow(args), slow(kwargs)
    if None in texts:
        with pytest.raises(PayloadError):
            encode_arguments(args, kwargs, names=(), limit=None)
    else:
        assert encode_arguments(args, kwargs, names=(), limit=None) == texts


@pytest.mark.django_db
def test_text_comes_back_from_postgresql_as_it_was() -> None:
    naive = datetime(2026, 1, 1)  # noqa: DTZ001
    everything = [
        1e16, -0.0, 10**700, "€ 😀 \u2028 \x01 \\u0000", b"\x00", (1, (2,)), {"$": {"": [None]}},
        Decimal("1.10"), naive, datetime.now(UTC), uuid.uuid4(), Colour.RED,
    ]  # fmt: skip
    with connection.cursor() as cursor:
        cursor.execute("SELECT %s::text", [encode(everything, where="it", limit=LIMIT)])
        (text,) = cursor.fetchone()

    assert identity(decode(text)) == identity(everything)


@pytest.mark.parametrize("value", [1e16, 1e308, 5e-324, -0.0, 0.1, 2.0**53, 1e22])
def test_float_keeps_type_digits_and_sign(value: float) -> None:
    back = there_and_back(value)

    assert type(back) is float
    assert back == value
    assert math.copysign(1, back) == math.copysign(1, value)


@pytest.mark.parametrize("bits", [62, 63, 64, 1999, 2000, 2200, 16_000, 100_000])
def test_huge_int_comes_back_whatever_limit_python_sets_on_digits(bits: int) -> None:
    value = -(2**bits) + 1
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(640)
    try:
        assert there_and_back(value) == value
    finally:
        sys.set_int_max_str_digits(before)


@pytest.mark.parametrize("text", ["1.10", "-0", "0E-20", "1E+400", "1E-1000000", "123." + "7" * 60])
def test_decimal_keeps_its_exponent(text: str) -> None:
    assert there_and_back(Decimal(text)).as_tuple() == Decimal(text).as_tuple()


def test_datetime_in_the_repeated_hour_keeps_its_fold() -> None:
    zone = zoneinfo.ZoneInfo("Europe/Berlin")
    for fold, offset in ((0, 2), (1, 1)):
        moment = datetime(2026, 10, 25, 2, 30, fold=fold, tzinfo=zone)
        back = there_and_back(moment)
        assert (back.fold, back.tzinfo) == (fold, zone)
        assert back.utcoffset() == timedelta(hours=offset)


@pytest.mark.parametrize("name", [None, "", "IST"])
@pytest.mark.parametrize("offset", [timedelta(0), timedelta(hours=-5), timedelta(microseconds=1)])
def test_fixed_offset_keeps_its_name_and_microseconds(offset: timedelta, name: str | None) -> None:
    zone = timezone(offset) if name is None else timezone(offset, name)

    for value in (datetime(2026, 1, 1, tzinfo=zone), time(1, tzinfo=zone)):
        assert identity(there_and_back(value)) == identity(value)


def test_aware_and_naive_datetime_stay_what_they_are() -> None:
    naive = datetime(2026, 1, 2, 3, 4, 5, 6)  # noqa: DTZ001
    aware = naive.replace(tzinfo=timezone(timedelta(hours=5, minutes=30), "IST"))

    assert there_and_back(naive).tzinfo is None
    assert there_and_back(aware).tzname() == "IST"
    assert there_and_back(aware) == aware


@pytest.mark.parametrize("member", [*Colour, *Size, *Level, *Access, JobStatus.DEAD, Access(0)])
def test_enum_member_comes_back_as_the_same_object(member: enum.Enum) -> None:
    assert there_and_back([member])[0] is member


def test_value_is_fresh_and_the_original_is_left_alone() -> None:
    original = {"rows": [{"tags": {1, 2}}], "$": (1,)}
    copy = there_and_back(original)
    copy["rows"][0]["tags"].add(3)
    copy["rows"].append(1)

    assert original == {"rows": [{"tags": {1, 2}}], "$": (1,)}


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (Point(1, 2), (1, 2)),
        (collections.OrderedDict(b=1, a=2), {"b": 1, "a": 2}),
        (collections.defaultdict(list, a=[1]), {"a": [1]}),
        (collections.Counter("aab"), {"a": 2, "b": 1}),
        (QueryDict("a=1&a=2"), {"a": ["1", "2"]}),
        (mark_safe("<b>"), "<b>"),
        (Text("itself"), "itself"),
        (Number(3), 3),
        (type("F", (float,), {})(0.5), 0.5),
        (type("L", (list,), {"__iter__": lambda self: iter(())})([1]), [1]),
        (type("S", (set,), {})({1}), {1}),
        (type("Z", (frozenset,), {})({1}), frozenset({1})),
        (type("B", (bytes,), {})(b"x"), b"x"),
        (type("D", (Decimal,), {"__str__": lambda self: "9"})("1.50"), Decimal("1.50")),
        (type("U", (uuid.UUID,), {})(int=5), uuid.UUID(int=5)),
        (type("T", (timedelta,), {})(5), timedelta(5)),
        (type("C", (time,), {})(5, fold=1), time(5, fold=1)),
        (type("Y", (date,), {})(2026, 1, 1), date(2026, 1, 1)),
        (Moment(2026, 1, 2, 3, fold=1, tzinfo=UTC), datetime(2026, 1, 2, 3, fold=1, tzinfo=UTC)),
        ({Text("key"): 1}, {"key": 1}),
        ({Size.SMALL: 1}, {"s": 1}),
    ],
)
def test_subclass_becomes_the_plain_type(value: Any, plain: Any) -> None:
    assert identity(there_and_back(value)) == identity(plain)


def test_lazy_translation_becomes_the_text_of_the_language_that_is_active() -> None:
    with override("de"):
        assert identity(there_and_back([gettext_lazy("Yes")])) == identity(["Ja"])


def test_lazy_value_that_is_no_text_is_refused() -> None:
    assert "argument 'order' is of type" in refusal(lazy(lambda: 5, int)())
    assert "SimpleLazyObject" in refusal(SimpleLazyObject(lambda: 5))


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ({1: "a"}, "argument 'order' has a key of type int; keys must be str"),
        ({None: 1}, "argument 'order' has a key of type NoneType; keys must be str"),
        ({"a": {(1, 2): 1}}, "argument 'order'.a has a key of type tuple; keys must be str"),
        (math.nan, "argument 'order' is nan, which JSON does not have"),
        ([0, math.inf], "argument 'order'[1] is inf, which JSON does not have"),
        (-math.inf, "argument 'order' is -inf, which JSON does not have"),
        (Decimal("NaN"), "argument 'order' is the Decimal NaN, which is no number"),
        (Decimal("sNaN"), "argument 'order' is the Decimal sNaN, which is no number"),
        (Decimal("-Infinity"), "argument 'order' is the Decimal -Infinity, which is no number"),
        ("a\x00b", "argument 'order' contains a NUL character"),
        ({"a\x00": 1}, r"argument 'order'['a\x00'] contains a NUL character"),
        ("\udce9", "argument 'order' contains a lone surrogate"),
        ({"\ud800": 1}, r"argument 'order'['\ud800'] contains a lone surrogate"),
        ([{"price": [Ellipsis]}], "argument 'order'[0].price[0] is of type builtins.ellipsis"),
        ({"the price": object()}, "argument 'order'['the price'] is of type builtins.object"),
        ((1, {2, b"".join}), "is of type builtins.builtin_function_or_method"),
        (bytearray(b"x"), "is of type builtins.bytearray, which a payload can't keep without loss"),
        (1j, "is of type builtins.complex"),
        (range(3), "is of type builtins.range"),
        (print, "is of type builtins.builtin_function_or_method"),
        (Colour, "is of type enum.EnumType"),
        (SimpleNamespace(a=1), "is of type types.SimpleNamespace"),
        (UTC, "is of type datetime.timezone"),
    ],
)
def test_refusal_names_the_argument_and_the_reason(value: Any, complaint: str) -> None:
    assert complaint in refusal(value)


def test_refusal_is_a_type_error_and_an_error_of_the_package() -> None:
    assert issubclass(PayloadError, TypeError)
    assert issubclass(PayloadError, DurableError)


def test_model_instance_is_refused_with_the_remedy() -> None:
    complaint = "is a model instance (django.contrib.auth.models.User): pass the primary key"

    assert refusal(User(username="ann")) == f"argument 'order' {complaint}"
    assert refusal([SimpleLazyObject(User)]).startswith("argument 'order'[0] is a model instance")


def test_queryset_is_refused_without_being_run() -> None:
    assert "is a queryset" in refusal(User.objects.all())
    assert "pass a list of primary keys" in refusal(User.objects.all())


def test_other_time_zone_is_refused() -> None:
    class Elsewhere(tzinfo):
        pass

    assert "has a time zone of type" in refusal(datetime(2026, 1, 1, tzinfo=Elsewhere()))
    assert "use zoneinfo.ZoneInfo(key) or datetime.timezone" in refusal(time(1, tzinfo=Elsewhere()))


def test_zone_that_is_in_no_database_is_refused() -> None:
    counts = bytes(16) + bytes([0, 0, 0, 1, 0, 0, 0, 4])
    utc = b"TZif" + bytes(16) + counts + bytes(6) + b"UTC\0"
    private = zoneinfo.ZoneInfo.from_file(io.BytesIO(utc), key="Private/Zone")

    assert "a time zone 'Private/Zone' that is in no" in refusal(time(1, tzinfo=private))


def test_enum_that_no_worker_can_import_is_refused() -> None:
    class Local(enum.Enum):
        ONE = 1

    assert "can't import: define the Enum in a module" in refusal(Local.ONE)


class Growing(enum.Enum):
    ONE = 1

    @classmethod
    def _missing_(cls, value: object) -> "Growing":
        member = object.__new__(cls)
        member._name_, member._value_ = "ONE", value
        return member


def test_pseudo_member_of_an_enum_is_refused() -> None:
    assert "is no member of its own class" in refusal(Growing(7))


def test_keys_that_would_become_one_are_refused() -> None:
    class Apart(str):
        __slots__ = ()
        __hash__ = object.__hash__

        def __eq__(self, other: object) -> bool:
            return self is other

    assert "has keys that are one key as plain str" in refusal({Apart("a"): 1, Apart("a"): 2})


def test_enum_of_the_main_module_is_refused() -> None:
    script = (
        "import enum, django_durable.payloads as p\n"
        "class E(enum.Enum): A = 1\n"
        "try: p.encode(E.A, where='it', limit=None)\n"
        "except TypeError as error: print(error)\n"
    )
    answer = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )

    assert "it is a member of __main__:E, which a worker can't import" in answer.stdout


def endless() -> list[Any]:
    value: list[Any] = []
    value.append({"again": value})
    return value


def nested(depth: int, wrap: Callable[[Any], Any] = lambda value: [value]) -> Any:
    return functools.reduce(lambda value, _: wrap(value), range(depth), "core")


@pytest.mark.parametrize(
    "value", [endless(), nested(201), nested(5_000), {"a": nested(200)}], ids=range(4)
)
def test_endless_and_very_deep_values_are_refused(value: Any) -> None:
    assert "contains itself or is nested more than 200 deep" in refusal(value)
    assert len(refusal(value)) < 200


def test_value_that_is_too_deep_for_the_callers_stack_is_refused() -> None:
    def deeper(left: int) -> str:
        return deeper(left - 1) if left else refusal(nested(200, lambda value: (value,)))

    depth = len(__import__("inspect").stack())
    assert "nested too deep" in deeper(sys.getrecursionlimit() - depth - 150)


@pytest.mark.parametrize(
    "wrap",
    [lambda v: [v], lambda v: (v,), lambda v: {"$": v}, lambda v: frozenset([v])],
    ids=["list", "tuple", "escaped dict", "frozenset"],
)
def test_value_at_the_limit_of_nesting_comes_back(wrap: Callable[[Any], Any]) -> None:
    value = nested(200, wrap)

    assert there_and_back(value) == value


def test_payload_of_exactly_the_limit_is_taken_and_one_more_byte_refused() -> None:
    assert len(encode("x" * 98, where="it", limit=100)) == 100
    assert "takes 101 bytes as JSON, more than the 100 of DURABLE_MAX_PAYLOAD" in refusal(
        "x" * 99, limit=100
    )


def test_limit_counts_bytes_and_not_characters() -> None:
    assert "takes 122 bytes" in refusal("€" * 40, limit=100)


HUGE: dict[str, Callable[[], Any]] = {
    "20 MB of text": lambda: "x" * 20_000_000,
    "50 MB of bytes": lambda: b"x" * 50_000_000,
    "one text many times": lambda: ["x" * 10_000] * 5_000,
    "many numbers": lambda: [1] * 5_000_000,
    "many rows": lambda: {"rows": [{"row": number} for number in range(200_000)]},
    "one list twice in itself, 60 times": lambda: nested(60, lambda value: [value, value]),
    "number": lambda: 1 << 40_000_000,
}


@pytest.mark.parametrize("kind", HUGE)
def test_huge_value_is_refused_with_its_size_before_it_is_written(kind: str) -> None:
    complaint = refusal(HUGE[kind]())

    assert "bytes as JSON, more than the 1,048,576 of DURABLE_MAX_PAYLOAD" in complaint
    assert len(complaint) < 300


# Reading what is no payload.


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "nope",
        "[1] 2",
        "NaN",
        "[Infinity]",
        '{"$": 1}',
        '{"$": []}',
        '{"$": {}}',
        '{"$": [[], 1]}',
        '{"$": ["pickle", "gASV"]}',
        '{"$": ["tuple"], "more": 1}',
        '{"$": ["tuple", 5]}',
        '{"$": ["set", [[]]]}',
        '{"$": ["int", "zz"]}',
        '{"$": ["decimal", "1.1.1"]}',
        '{"$": ["uuid", "1"]}',
        '{"$": ["bytes", "?"]}',
        '{"$": ["date", "2026-13-01"]}',
        '{"$": ["datetime", "2026-01-01", 0, "Europe/Atlantis"]}',
        '{"$": ["datetime", "2026-01-01", 0, "../../etc/passwd"]}',
        '{"$": ["datetime", "2026-01-01", 7]}',
        '{"$": ["timedelta", 99999999999]}',
        '{"$": ["enum", "no.such.module:Colour", "RED"]}',
        '{"$": ["enum", "tests.test_payloads:Missing", "RED"]}',
        '{"$": ["enum", "tests.test_payloads:Colour", "BLUE"]}',
        '{"$": ["enum", "tests.test_payloads:Colour", null, 1]}',
        '{"$": ["enum", "", "RED"]}',
        '{"$": ["enum", ".x:y", "RED"]}',
        '{"$": ["enum", "tests.test_payloads:Colour.RED", "RED"]}',
        "[" * 100_000,
        "1" * 10_000,
    ],
)
def test_text_that_is_no_payload_is_told_from_one(text: str) -> None:
    with pytest.raises(PayloadDecodeError) as caught:
        decode(text)

    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("path", ["tests.test_payloads:NotAnEnum", "os:system", "builtins:eval"])
def test_reader_calls_nothing_that_is_no_enum(path: str) -> None:
    for rest in ('"x"', "null, 1", '"__init__"'):
        with pytest.raises(PayloadDecodeError):
            decode(f'{{"$": ["enum", "{path}", {rest}]}}')
    assert not NotAnEnum.called


def test_enum_of_a_module_that_is_not_loaded_yet_is_imported() -> None:
    script = (
        "import sys, django_durable.payloads as p\n"
        "assert 'http' not in sys.modules or sys.modules.pop('http')\n"
        'print(repr(p.decode(\'{"$": ["enum", "http:HTTPStatus", "OK"]}\')))\n'
    )
    answer = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )

    assert answer.stdout.startswith("<HTTPStatus.OK: 200>")


def test_vocabulary_needs_neither_settings_nor_models() -> None:
    script = (
        "import sys\n"
        "from django_durable import payloads, errortext, durations, backoff, exceptions\n"
        "assert payloads.decode(payloads.encode((1,), where='it', limit=9**9)) == (1,)\n"
        "print('django_durable.models' in sys.modules)\n"
    )
    answer = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env={}
    )

    assert answer.stdout == "False\n"


# Calls.


def two(order: int, mail: str = "") -> None: ...


def only(order: int, /, *, mail: str, copy: str = "") -> None: ...


def free(*orders: int, **options: int) -> None: ...


async def later(order: int, mail: str = "") -> None: ...


def with_context(context: object, order: int) -> None: ...


@pytest.mark.parametrize(
    ("func", "args", "kwargs"),
    [
        (two, (1,), {}),
        (two, (1, "a"), {}),
        (two, (), {"mail": "a", "order": 1}),
        (later, (1,), {"mail": "a"}),
        (only, (1,), {"mail": "a"}),
        (free, (), {}),
        (free, (1, 2, 3), {"a": 1, "$": 2}),
    ],
)
def test_right_call_binds(func: Any, args: Any, kwargs: Any) -> None:
    bind_arguments(func, args, kwargs, takes_context=False)


@pytest.mark.parametrize(
    ("func", "args", "kwargs", "complaint"),
    [
        (two, (), {}, "two(): missing a required argument: 'order'"),
        (two, (1, 2, 3), {}, "two(): too many positional arguments"),
        (two, (1,), {"order": 2}, "two(): multiple values for argument 'order'"),
        (two, (1,), {"male": 2}, "two(): got an unexpected keyword argument 'male'"),
        (later, (), {"mail": "a"}, "later(): missing a required argument: 'order'"),
        (only, (1,), {}, "only(): missing a required"),
    ],
)
def test_wrong_call_is_a_type_error_that_names_the_function(
    func: Any, args: Any, kwargs: Any, complaint: str
) -> None:
    with pytest.raises(TypeError) as caught:
        bind_arguments(func, args, kwargs, takes_context=False)

    assert str(caught.value).startswith(complaint)


def test_context_is_for_the_worker_to_fill() -> None:
    bind_arguments(with_context, (1,), {}, takes_context=True)
    bind_arguments(with_context, (), {"order": 1}, takes_context=True)
    for args, kwargs in [((), {}), ((1, 2), {}), ((1,), {"context": 1})]:
        with pytest.raises(TypeError, match="with_context"):
            bind_arguments(with_context, args, kwargs, takes_context=True)
    assert argument_names(with_context, takes_context=True) == ("order",)
    assert argument_names(only, takes_context=False) == ("order",)


def test_annotation_that_only_a_type_checker_can_resolve_does_no_harm() -> None:
    namespace: dict[str, Any] = {}
    source = "from __future__ import annotations\ndef job(order: Nowhere) -> Missing: ..."
    exec(compile(source, "jobs", "exec"), namespace)  # noqa: S102

    bind_arguments(namespace["job"], (1,), {}, takes_context=False)


def refused_call(args: Any, kwargs: Any, limit: int = LIMIT) -> str:
    with pytest.raises(PayloadError) as caught:
        encode_arguments(args, kwargs, names=("order", "mail"), limit=limit)
    return str(caught.value)


def test_arguments_are_a_list_and_a_dict() -> None:
    assert encode_arguments((), {}, names=(), limit=LIMIT) == ("[]", "{}")
    texts = encode_arguments((1, (2,)), {"$": 3}, names=(), limit=LIMIT)
    assert [decode(text) for text in texts] == [[1, (2,)], {"$": 3}]


def test_refused_argument_is_named_as_the_function_names_it() -> None:
    assert refused_call((1, [object()]), {}).startswith("argument 'mail'[0] is of type")
    assert refused_call((1, 2, object()), {}).startswith("argument 3 is of type")
    assert refused_call((1,), {"mail": {"a": math.nan}}).startswith("argument 'mail'.a is nan")
    assert refused_call((), {"a\0": 1}).startswith(r"argument 'a\x00' contains a NUL")


def test_arguments_count_together_and_the_largest_is_named() -> None:
    encode_arguments(("x" * 40,), {"mail": "x" * 40}, names=("order",), limit=100)
    complaint = refused_call(("x" * 40,), {"note": "x" * 46}, limit=100)
    assert complaint.startswith("argument 'note' takes 101 bytes as JSON")
    assert refused_call((1, "x" * 200), {}, limit=100).startswith("argument 'mail' takes at least")
