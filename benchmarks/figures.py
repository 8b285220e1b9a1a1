"""What is measured, and how one number comes of several runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import Any

Measure = Callable[[], float]


@dataclass(frozen=True)
class Target:
    """Say what a figure should reach.

    A value at most; or a ratio to what it was measured beside, at least or at most, by the name of
    that. Of several ratios one is enough.
    """

    value_at_most: float | None = None
    at_least: Mapping[str, float] = field(default_factory=dict)
    at_most: Mapping[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        said = [f">= {ratio:g} of {name}" for name, ratio in self.at_least.items()]
        said += [f"<= {ratio:g} of {name}" for name, ratio in self.at_most.items()]
        if self.value_at_most is not None:
            said.append(f"<= {self.value_at_most:g}")
        return " or ".join(said)


@dataclass(frozen=True)
class Figure:
    """Hold what was measured in each round, and beside what.

    `beside` has, by name, the values of the limits or other figures measured in turn with it.
    """

    case: str
    what: str
    unit: str
    values: Sequence[float]
    beside: Mapping[str, Sequence[float]] = field(default_factory=dict)
    target: Target | None = None

    @property
    def median(self) -> float:
        """Return the median of the rounds."""
        return median(self.values)

    @property
    def ratios(self) -> dict[str, float]:
        """Return the median of the rounds' own ratios, which a noisy neighbour disturbs least."""
        return {
            name: median(value / other for value, other in zip(self.values, others, strict=True))
            for name, others in self.beside.items()
        }

    @property
    def is_met(self) -> bool | None:
        """Tell whether the target is reached, None without one."""
        if self.target is None:
            return None
        most, ratios = self.target.value_at_most, self.ratios
        return (
            (most is not None and self.median <= most)
            or any(ratios[name] >= ratio for name, ratio in self.target.at_least.items())
            or any(ratios[name] <= ratio for name, ratio in self.target.at_most.items())
        )

    def as_json(self) -> dict[str, Any]:
        """Return the figure as one JSON line has it."""
        return {
            "kind": "figure",
            "case": self.case,
            "what": self.what,
            "unit": self.unit,
            "median": self.median,
            "min": min(self.values),
            "max": max(self.values),
            "values": list(self.values),
            "beside": {name: list(values) for name, values in self.beside.items()},
            "ratios": self.ratios,
            "target": None if self.target is None else str(self.target),
            "met": self.is_met,
        }


def in_turn(
    measure: Measure, beside: Mapping[str, Measure], rounds: int
) -> tuple[list[float], dict[str, list[float]]]:
    """Measure something in turn with others; beside each value, the others' from before and after.

    What else the machine does comes and goes, so both sides of a ratio get their share of it. The
    others' values are the means of two neighbours; of a single round, the one before.
    """
    values: list[float] = []
    others = {name: [other()] for name, other in beside.items()}
    for _ in range(rounds):
        values.append(measure())
        if rounds > 1:
            for name, other in beside.items():
                others[name].append(other())
    if rounds == 1:
        return values, others
    means = {name: [(a + b) / 2 for a, b in pairwise(found)] for name, found in others.items()}
    return values, means
