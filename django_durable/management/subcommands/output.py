"""Rows, moments and payloads as lines of text and as JSON."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from enum import Enum
from typing import Any

from django.core.management.base import OutputWrapper
from django.core.management.color import Style
from django.utils import timezone
from django.utils.duration import duration_iso_string

from django_durable.fields import Undecodable

GAP = "  "
# The styles of statuses and states.
STYLES = {
    "SUCCESSFUL": "SUCCESS",
    "DEAD": "ERROR",
    "CANCELLED": "WARNING",
    "RUNNING": "NOTICE",
    "dead": "ERROR",
    "draining": "WARNING",
    "paused": "WARNING",
    "broken": "ERROR",
    "off": "WARNING",
}


def as_json(document: Any) -> str:
    """Return the document as JSON: moments in ISO 8601, ids as text, in ASCII alone."""
    return json.dumps(document, indent=2, default=_as_text)


def _as_text(value: Any) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)


def plain(value: Any) -> Any:
    """Return a payload value in the types of JSON: typed values as text, for reading only."""
    # An Enum member may be a str or an int too.
    if isinstance(value, Enum):
        return f"{type(value).__qualname__}.{value.name}"
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted((plain(item) for item in value), key=json.dumps)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, timedelta):
        return duration_iso_string(value)
    return value.isoformat() if isinstance(value, (date, time)) else str(value)


def payload_entry(key: str, value: Any) -> dict[str, Any]:
    """Return the payload under its key; one that can't be read is null, and a note says why."""
    if isinstance(value, Undecodable):
        return {key: None, f"{key}_note": str(value)}
    return {key: plain(value)}


def printable(text: str) -> str:
    """Return the text in one line that can't move the cursor or colour the terminal."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


def shortened(text: str, width: int) -> str:
    """Return the text in one line, cut to the width."""
    line = " ".join(text.split())
    return printable(line if len(line) <= width else line[: width - 3] + "...")


def moment(at: datetime | None) -> str:
    """Return a moment for people, in the current time zone."""
    return "-" if at is None else f"{timezone.localtime(at):%Y-%m-%d %H:%M:%S}"


@dataclass(frozen=True)
class Page:
    """Write lines and aligned tables with the styles of the command."""

    stdout: OutputWrapper
    style: Style

    def line(self, text: str = "") -> None:
        """Write a line as it is."""
        self.stdout.write(text)

    def title(self, text: str) -> None:
        """Write a heading after an empty line."""
        self.stdout.write("\n" + self.style.MIGRATE_HEADING(text))

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """Write a table; a column whose cells are all numbers is aligned to the right."""
        cells = [[printable(str(cell)) for cell in row] for row in rows]
        widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
        to_right = [
            all(isinstance(cell, int) for cell in column) for column in zip(*rows, strict=True)
        ] or [False] * len(columns)
        lines = [[self.style.MIGRATE_LABEL(name) if name else "" for name in columns]]
        lines += [
            [self._paint(name, cell) for name, cell in zip(columns, row, strict=True)]
            for row in cells
        ]
        for painted, bare in zip(lines, [columns, *cells], strict=True):
            # Colour codes have no width, so the padding goes by the bare text.
            padding = [" " * (width - len(cell)) for width, cell in zip(widths, bare, strict=True)]
            parts = [
                space + text if right else text + space
                for text, space, right in zip(painted, padding, to_right, strict=True)
            ]
            self.line(GAP.join(parts).rstrip())

    def fields(self, fields: Mapping[str, str]) -> None:
        """Write names and values, one a line."""
        width = max(map(len, fields))
        for name, value in fields.items():
            self.stdout.write(
                f"{self.style.MIGRATE_LABEL(name.ljust(width))}{GAP}{printable(value)}"
            )

    def _paint(self, column: str, cell: str) -> str:
        style = STYLES.get(cell) if column in ("STATUS", "STATE") else None
        return getattr(self.style, style)(cell) if style else cell
