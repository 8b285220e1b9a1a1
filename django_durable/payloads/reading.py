"""From stored text to values."""

from __future__ import annotations

import binascii
import json
import sys
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, Flag
from importlib import import_module
from typing import TYPE_CHECKING, Any, NoReturn
from uuid import UUID
from zoneinfo import ZoneInfo

from django_durable.exceptions import PayloadDecodeError

if TYPE_CHECKING:
    from collections.abc import Callable

# The one key of an object that stands for a value of another type.
TAG = "$"


def decode(text: str) -> Any:
    """Return the value that `encode` wrote; raise PayloadDecodeError if the text is none of its."""
    reader = _tagged_json if '"$"' in text else _plain_json
    try:
        if text[:1].isspace():
            return reader.decode(text)
        # What was written here has no blanks around it, which `decode` takes long to look for.
        value, end = reader.raw_decode(text)
        return value if end == len(text) else reader.decode(text)
    except PayloadDecodeError:
        raise
    except (ValueError, RecursionError) as error:
        raise PayloadDecodeError(f"not a payload: {error}") from error


def find_enum(module: Any, qualname: str) -> type[Enum] | None:
    """Return the Enum that a module has under this name; reading it calls nothing."""
    found = module
    for name in qualname.split("."):
        if found is None or not hasattr(found, "__dict__"):
            return None
        found = vars(found).get(name)
    is_enum = isinstance(found, type) and issubclass(found, Enum)
    return found if is_enum and found.__module__ != "__main__" else None


def _refuse_constant(text: str) -> NoReturn:
    raise PayloadDecodeError(f"not a payload: {text} is no JSON")


def _read_object(value: dict[str, Any]) -> Any:
    if TAG not in value:
        return value
    try:
        ((_, (tag, *parts)),) = value.items()
        read = _READERS[tag]
    except (TypeError, ValueError, KeyError):
        raise PayloadDecodeError(f"not a payload: unknown form {str(value)[:100]}") from None
    try:
        return read(*parts)
    except (Exception, SystemExit) as error:  # an Enum's module is code, which may exit
        raise PayloadDecodeError(f"can't read a value of type {tag}: {error!r}") from error


def _read_moment(kind: type[datetime] | type[time]) -> Callable[..., Any]:
    def read(text: str, fold: int = 0, zone: Any = None) -> datetime | time:
        value = kind.fromisoformat(text)
        if isinstance(zone, str):
            return value.replace(fold=fold, tzinfo=ZoneInfo(zone))
        if zone is not None:
            seconds, name = zone
            offset = timedelta(seconds=seconds)
            fixed = timezone(offset) if name is None else timezone(offset, name)
            return value.replace(fold=fold, tzinfo=fixed)
        return value.replace(fold=fold)

    return read


def _read_enum(path: str, name: str | None, value: int | None = None) -> Enum:
    module, _, qualname = path.partition(":")
    kind = find_enum(sys.modules.get(module) or import_module(module), qualname)
    if kind is None:
        raise LookupError(f"no Enum {path}")
    if name is not None:
        return kind.__members__[name]
    if issubclass(kind, Flag):
        return kind(value)
    raise LookupError(f"{path} is no Flag")


_READERS: dict[str, Callable[..., Any]] = {
    "int": lambda digits: int(digits, 16),
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "dict": dict,
    "datetime": _read_moment(datetime),
    "date": date.fromisoformat,
    "time": _read_moment(time),
    "timedelta": timedelta,
    "decimal": Decimal,
    "uuid": UUID,
    "bytes": lambda text: binascii.a2b_base64(text, strict_mode=True),
    "enum": _read_enum,
}

_plain_json = json.JSONDecoder(parse_constant=_refuse_constant)
_tagged_json = json.JSONDecoder(parse_constant=_refuse_constant, object_hook=_read_object)
