"""The figures for people, as a table, and for programs, as JSON lines."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import IO

from benchmarks.figures import Figure

HEAD = ("what", "median", "min - max", "unit", "ratio", "target")


def number(value: float) -> str:
    """Write a figure with three significant digits or none after the point."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def limit_figures(values: Mapping[str, Sequence[float]]) -> list[Figure]:
    """Return what was measured of the limits in the whole run."""
    what = {
        "commits": ("single-row commits, one connection", "commits/s"),
        "claim+complete": ("claim + complete by 100 in bare SQL, one connection", "jobs/s"),
        "copy": ("COPY into a narrow table, one connection", "rows/s"),
    }
    return [Figure("limit", *what[name], found) for name, found in values.items()]


def row(figure: Figure) -> tuple[str, ...]:
    """Return the cells of a figure's row."""
    met = figure.is_met
    target = "" if figure.target is None else str(figure.target)
    if met is not None:
        target += ": met" if met else ": missed"
    spread = f"{number(min(figure.values))} - {number(max(figure.values))}"
    ratios = [
        f"{ratio:.2f} of {name} ({number(median(figure.beside[name]))})"
        for name, ratio in figure.ratios.items()
    ]
    cells = (figure.what, number(figure.median), spread, figure.unit)
    return (*cells, "; ".join(ratios), target)


def as_text(figures: Iterable[Figure]) -> str:
    """Return a table for a terminal."""
    rows = [HEAD, *(row(figure) for figure in figures)]
    widths = [max(len(cells[column]) for cells in rows) for column in range(len(HEAD))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()
        for cells in rows
    ]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def as_markdown(figures: Iterable[Figure], machine: Mapping[str, str], command: str) -> str:
    """Return the page part that the documentation includes."""
    rows = [HEAD, ("---",) * len(HEAD), *(row(figure) for figure in figures)]
    table = ["| " + " | ".join(cells) + " |" for cells in rows]
    facts = "; ".join(f"{name} {value}" for name, value in machine.items())
    return "\n".join([*table, "", f"Made by `{command}` on: {facts}.", ""])


def write_json(stream: IO[str], machine: Mapping[str, str], figures: Iterable[Figure]) -> None:
    """Write one JSON object a line: the machine, then each figure."""
    print(json.dumps({"kind": "machine", **machine}), file=stream)
    for figure in figures:
        print(json.dumps(figure.as_json()), file=stream, flush=True)
