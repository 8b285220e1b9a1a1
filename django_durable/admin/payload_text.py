"""Decoded payloads as indented text: JSON for what JSON has, `type("...")` for the rest."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from datetime import date, datetime, time
from enum import Enum
from itertools import chain
from typing import Any

from django_durable.fields import Undecodable

INDENT = "  "
# Python refuses to write longer integers in decimal.
MAX_DECIMAL_BITS = 10_000

_BRACKETS: dict[type, tuple[str, str]] = {
    list: ("[", "]"),
    tuple: ("(", ")"),
    set: ("{", "}"),
    frozenset: ("frozenset({", "})"),
}


def payload_text(value: Any, limit: int | None = None) -> tuple[str, bool]:
    """Return the value as text, and whether it was cut at `limit` characters.

    No more of the value is looked at than fits. A value that can't be decoded gives the reason
    and the stored text.
    """
    pieces: list[str] = []
    length = 0
    for piece in _pieces(value, ""):
        pieces.append(piece)
        length += len(piece)
        if limit is not None and length > limit:
            return "".join(pieces)[:limit], True
    return "".join(pieces), False


def _pieces(value: Any, indent: str) -> Iterator[str]:
    if isinstance(value, Undecodable):
        yield f"cannot be decoded: {value.reason}\n{value.text}"
    elif isinstance(value, dict):
        items = ((f"{_quoted(key)}: ", item) for key, item in value.items())
        yield from _container("{", "}", items, indent)
    elif type(value) in _BRACKETS:
        opening, closing = _BRACKETS[type(value)]
        yield from _container(opening, closing, (("", item) for item in value), indent)
    else:
        yield _scalar(value)


def _container(
    opening: str, closing: str, items: Iterable[tuple[str, Any]], indent: str
) -> Iterator[str]:
    remaining = iter(items)
    first = next(remaining, None)
    if first is None:
        yield opening + closing
        return
    inner = indent + INDENT
    separator = opening + "\n"
    for prefix, item in chain([first], remaining):
        yield f"{separator}{inner}{prefix}"
        yield from _pieces(item, inner)
        separator = ",\n"
    yield f"\n{indent}{closing}"


def _scalar(value: Any) -> str:
    if isinstance(value, Enum):
        return f"{type(value).__qualname__}.{value.name}"
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, int) and value.bit_length() > MAX_DECIMAL_BITS:
        return hex(value)
    if value is None or isinstance(value, (bool, int, float)):
        return json.dumps(value)
    if isinstance(value, bytes):
        return repr(value)
    if isinstance(value, (date, time)):
        zone = getattr(value.tzinfo, "key", None) if isinstance(value, (datetime, time)) else None
        text = value.isoformat() + (f"[{zone}]" if zone else "")
    else:
        text = str(value)
    return f"{type(value).__name__}({_quoted(text)})"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
