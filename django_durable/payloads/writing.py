"""From values to text: each type has a function that gives its form, made of what JSON has."""

from __future__ import annotations

import binascii
import json
import math
import sys
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from enum import Enum, Flag
from typing import TYPE_CHECKING, Any
from uuid import UUID
from zoneinfo import ZoneInfo

from django.utils.functional import Promise

from django_durable.exceptions import PayloadError
from django_durable.payloads.reading import TAG, find_enum

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

_json_text = json.encoder.encode_basestring
MAX_NESTING = 200
# Python limits the digits of the ints it reads and writes, but never below 640 of them.
_DECIMAL_INTS = 1 << 2000

_json = json.JSONEncoder(
    ensure_ascii=False, check_circular=False, allow_nan=False, separators=(",", ":")
)


def encode(value: object, *, where: str, limit: int | None) -> str:
    """Return the JSON text that `decode` turns into an equal, fresh value of the same type.

    Raise PayloadError, which starts with `where` and the path in it, for a value that has no such
    text or one of more than `limit` bytes (None: no limit).
    """
    writer = Writer(limit)
    try:
        text = _flat(value)
        if text is None:
            text = writer.text(value)
        writer.fit(bytes_of(text))
    except Refused as refused:
        raise PayloadError(f"{where}{refused.path()} {refused}") from None
    return text


class Refused(Exception):  # noqa: N818 - never leaves the package
    """Carry a refusal outwards; each container on the way adds its index or key to `parts`."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.parts: list[int | str] = []

    def path(self) -> str:
        """Return the way from the root to the culprit, such as `[3].price`."""
        outermost = "".join(
            f".{part}" if str(part).isidentifier() else f"[{part!r:.50}]"
            for part in reversed(self.parts[-10:])
        )
        return outermost + ("..." if len(self.parts) > 10 else "")


class Writer:
    """Turn values into forms of what JSON has, and count what they take.

    `size` is a lower bound of the text's length, kept while walking, since a value that holds one
    thing many times over may be small in memory and endless as text.
    """

    __slots__ = ("depth", "limit", "size")

    def __init__(self, limit: int | None) -> None:
        self.limit = sys.maxsize if limit is None else limit
        self.size = 0
        self.depth = 0

    def text(self, value: Any) -> str:
        """Return the JSON text of a value; raise Refused if it has none."""
        try:
            return _json.encode(_WRITERS.get(type(value), _unusual)(self, value))
        except RecursionError:
            raise Refused("is nested too deep for what is left of the stack") from None

    def fit(self, size: int) -> None:
        """Raise Refused if a text of so many bytes is too long."""
        if size > self.limit:
            raise Refused(_too_big(size, self.limit))

    def enter(self, container: Any) -> None:
        """Begin a container; `items` or `_dict` ends it."""
        self.depth += 1
        if self.depth > MAX_NESTING:
            raise Refused(f"contains itself or is nested more than {MAX_NESTING} deep")
        self.count(2 * len(container))

    def count(self, size: int) -> None:
        """Add what is certain to be written."""
        self.size += size
        if self.size > self.limit:
            raise Refused(_too_big(self.size, self.limit, "at least "))

    def items(self, values: Iterable[Any]) -> list[Any]:
        """Return the forms of a container's members and end it."""
        forms: list[Any] = []
        try:
            for value in values:
                write = _WRITERS.get(type(value), _unusual)
                forms.append(write(self, value))
        except Refused as refused:
            refused.parts.append(len(forms))
            raise
        self.depth -= 1
        return forms


def flat_list(values: Sequence[object]) -> str | None:
    """Return the text of a list of nothing but texts, small ints, bools and None; else None.

    It is what `Writer` makes of it, in a fraction of the time.
    """
    texts = [_flat(value) for value in values]
    return None if None in texts else f"[{','.join(texts)}]"  # type: ignore[arg-type]


def flat_dict(values: Mapping[str, object]) -> str | None:
    """Return the text of a dict of nothing but what `flat_list` takes; else None."""
    texts: list[str] = []
    for key, value in values.items():
        key_text = _flat(key) if type(key) is str and key != TAG else None
        text = _flat(value)
        if key_text is None or text is None:
            return None
        texts.append(f"{key_text}:{text}")
    return "{" + ",".join(texts) + "}"


def _flat(value: object) -> str | None:
    kind = type(value)
    if kind is int:
        return repr(value) if -_DECIMAL_INTS < value < _DECIMAL_INTS else None  # type: ignore[operator]
    if kind is str:
        # Printable text has neither a NUL nor half of a surrogate pair.
        return _json_text(value) if value.isprintable() else None  # type: ignore[attr-defined, arg-type]
    if value is None:
        return "null"
    if kind is bool:
        return "true" if value else "false"
    return None


def bytes_of(text: str) -> int:
    """Return how many bytes the text takes as UTF-8."""
    return len(text) if text.isascii() else len(text.encode())


def _too_big(size: int, limit: int, least: str = "") -> str:
    return (
        f"takes {least}{size:,} bytes as JSON, more than the {limit:,} of DURABLE_MAX_PAYLOAD:"
        " store it elsewhere and pass a reference"
    )


def _same(writer: Writer, value: Any) -> Any:
    return value


def _str(writer: Writer, value: str) -> str:
    size = len(value)
    if not value.isascii():
        try:
            size = len(value.encode())
        except UnicodeEncodeError:
            raise Refused("contains a lone surrogate, which is no text") from None
    if "\x00" in value:
        raise Refused("contains a NUL character, which PostgreSQL can't store")
    writer.count(size)
    return value


def _int(writer: Writer, value: int) -> Any:
    if -_DECIMAL_INTS < value < _DECIMAL_INTS:
        return value
    digits = hex(value)
    writer.count(len(digits))
    return {TAG: ["int", digits]}


def _float(writer: Writer, value: float) -> float:
    if math.isfinite(value):
        return value
    raise Refused(f"is {value!r}, which JSON does not have")


def _list(writer: Writer, value: list[Any]) -> Any:
    writer.enter(value)
    return writer.items(value)


def _tuple(writer: Writer, value: tuple[Any, ...]) -> Any:
    writer.enter(value)
    return {TAG: ["tuple", writer.items(value)]}


def _set(writer: Writer, value: set[Any] | frozenset[Any]) -> Any:
    writer.enter(value)
    tag = "set" if type(value) is set else "frozenset"
    # Sorted, so that one set has one text.
    return {TAG: [tag, sorted(writer.items(value), key=_json.encode)]}


def _dict(writer: Writer, value: dict[Any, Any]) -> Any:
    writer.enter(value)
    forms: dict[str, Any] = {}
    key: Any = None
    try:
        for key, item in value.items():
            if type(key) is not str:
                key = _plain_key(key)
            _str(writer, key)
            forms[key] = _WRITERS.get(type(item), _unusual)(writer, item)
    except Refused as refused:
        if type(key) is str:
            refused.parts.append(key)
        raise
    if len(forms) != len(value):
        raise Refused("has keys that are one key as plain str")
    writer.depth -= 1
    return {TAG: ["dict", [[k, v] for k, v in forms.items()]]} if TAG in forms else forms


def _plain_key(key: object) -> str:
    if issubclass(type(key), str):
        return str.__str__(key)
    raise Refused(f"has a key of type {type(key).__qualname__}; keys must be str")


def _moment(writer: Writer, value: datetime | time) -> Any:
    tag = "datetime" if isinstance(value, datetime) else "time"
    plain, zone = _wall_clock(value), value.tzinfo
    if not value.fold and _is_plain(zone):
        return {TAG: [tag, plain.replace(tzinfo=zone).isoformat()]}
    return {TAG: [tag, plain.isoformat(), value.fold, _zone(writer, zone)]}


def _wall_clock(value: datetime | time) -> datetime | time:
    clock = (value.hour, value.minute, value.second, value.microsecond)
    if isinstance(value, datetime):
        return datetime(value.year, value.month, value.day, *clock)  # noqa: DTZ001 - added later
    return time(*clock)


def _is_plain(zone: tzinfo | None) -> bool:
    """Tell whether Python reads all of it back from ISO 8601; it drops an offset below a second."""
    if not isinstance(zone, timezone):
        return zone is None
    return not zone.utcoffset(None).microseconds and _own_name(zone) is None


def _own_name(zone: timezone) -> str | None:
    name = zone.tzname(None)
    return None if name == timezone(zone.utcoffset(None)).tzname(None) else name


def _zone(writer: Writer, zone: tzinfo | None) -> Any:
    """Return None, the key of a ZoneInfo, or [seconds, name] of a fixed offset."""
    if zone is None:
        return None
    if isinstance(zone, ZoneInfo) and zone.key:
        return _known(zone.key)
    if isinstance(zone, timezone):
        name = _own_name(zone)
        return [zone.utcoffset(None).total_seconds(), name if name is None else _str(writer, name)]
    kind = type(zone)
    raise Refused(
        f"has a time zone of type {kind.__module__}.{kind.__qualname__};"
        " use zoneinfo.ZoneInfo(key) or datetime.timezone"
    )


def _known(key: str) -> str:
    try:
        ZoneInfo(key)
    except (KeyError, ValueError, OSError):
        raise Refused(f"has a time zone {key!r} that is in no database of time zones") from None
    return key


def _date(writer: Writer, value: date) -> Any:
    return {TAG: ["date", date(value.year, value.month, value.day).isoformat()]}


def _timedelta(writer: Writer, value: timedelta) -> Any:
    return {TAG: ["timedelta", value.days, value.seconds, value.microseconds]}


def _decimal(writer: Writer, value: Decimal) -> Any:
    if not value.is_finite():
        raise Refused(f"is the Decimal {Decimal.__str__(value)}, which is no number")
    digits = Decimal.__str__(value)
    writer.count(len(digits))
    return {TAG: ["decimal", digits]}


def _uuid(writer: Writer, value: UUID) -> Any:
    return {TAG: ["uuid", str(UUID(int=value.int))]}


def _bytes(writer: Writer, value: bytes) -> Any:
    writer.count(len(value) * 4 // 3)
    return {TAG: ["bytes", binascii.b2a_base64(value, newline=False).decode()]}


def _enum(writer: Writer, value: Enum) -> Any:
    kind = type(value)
    path = f"{kind.__module__}:{kind.__qualname__}"
    if find_enum(sys.modules.get(kind.__module__), kind.__qualname__) is not kind:
        raise Refused(
            f"is a member of {path}, which a worker can't import: define the Enum in a module"
        )
    if kind.__members__.get(value._name_) is value:
        return {TAG: ["enum", path, value._name_]}
    if isinstance(value, Flag):  # a combination that has no name
        return {TAG: ["enum", path, None, _int(writer, value._value_)]}
    raise Refused(f"is no member of its own class {path}")


_WRITERS: dict[type, Callable[[Writer, Any], Any]] = {
    str: _str,
    int: _int,
    bool: _same,
    type(None): _same,
    float: _float,
    list: _list,
    dict: _dict,
    tuple: _tuple,
    set: _set,
    frozenset: _set,
    datetime: _moment,
    date: _date,
    time: _moment,
    timedelta: _timedelta,
    Decimal: _decimal,
    UUID: _uuid,
    bytes: _bytes,
}

# How a subclass becomes the plain type, whatever it overrides; its own writer reads the others.
_PLAIN: dict[type, Callable[[Any], Any]] = {
    str: str.__str__,
    int: int.__int__,
    float: float.__float__,
    list: lambda value: [*list.__iter__(value)],
    dict: lambda value: dict(dict.items(value)),
    tuple: lambda value: tuple(tuple.__iter__(value)),
    set: lambda value: set(set.__iter__(value)),
    frozenset: lambda value: frozenset(frozenset.__iter__(value)),
    bytes: bytes.__bytes__,
}


def _unusual(writer: Writer, value: Any) -> Any:
    """Give the form of an Enum member, a lazy string or an instance of a subclass, or refuse."""
    if issubclass(type(value), Enum):
        return _enum(writer, value)
    for kind in type(value).__mro__:
        if write := _WRITERS.get(kind):
            return write(writer, _PLAIN[kind](value) if kind in _PLAIN else value)
    if isinstance(value, Promise) and hasattr(value, "casefold"):
        return _str(writer, str.__str__(str(value)))
    raise Refused(_why_not(value))


def _why_not(value: object) -> str:
    kind = type(value)
    name = f"{kind.__module__}.{kind.__qualname__}"
    models = sys.modules.get("django.db.models")
    if models and isinstance(value, models.Model):
        return f"is a model instance ({name}): pass the primary key"
    if models and isinstance(value, models.QuerySet):
        return f"is a queryset ({name}): pass a list of primary keys"
    return f"is of type {name}, which a payload can't keep without loss"
