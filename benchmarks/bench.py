"""What every case is handed: databases, limits, and how much to do."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.databases import Databases
from benchmarks.figures import Figure, Measure, Target, in_turn
from benchmarks.limits import Limits

Case = Callable[["Bench"], Iterator[Figure]]


class Skipped(Exception):  # noqa: N818 - it is no error
    """A case can't run here; the text says why."""


@dataclass
class Bench:
    """Hold one run of the benchmarks."""

    databases: Databases
    limits: Limits
    quick: bool
    rounds: int
    peers: Sequence[str] = ()
    limit_values: dict[str, list[float]] = field(default_factory=dict)
    started: float = field(default_factory=time.monotonic)

    def size(self, full: int, quick: int) -> int:
        """Return how much of something to do."""
        return quick if self.quick else full

    def limit(self, name: str) -> Measure:
        """Return the measure of a limit, which notes each of its values."""

        def measure() -> float:
            value = self.limits.all[name]()
            self.limit_values.setdefault(name, []).append(value)
            return value

        return measure

    def commits(self, count: int) -> dict[str, Measure]:
        """Return the measure of how long so many single-row commits take, by its name."""
        rate = self.limit("commits")
        return {f"{count:,} commits": lambda: count / rate()}

    def compare(
        self,
        case: str,
        what: str,
        measure: Measure,
        *limits: str,
        unit: str = "jobs/s",
        beside: Mapping[str, Measure] | None = None,
        target: Target | None = None,
    ) -> Figure:
        """Measure something in turn with other measures, and with limits."""
        others = {**(beside or {}), **{name: self.limit(name) for name in limits}}
        values, found = in_turn(measure, others, self.rounds)
        return Figure(case, what, unit, values, found, target)

    def say(self, text: str) -> None:
        """Show on stderr how far the run has come."""
        print(f"[{time.monotonic() - self.started:6.1f} s] {text}", file=sys.stderr, flush=True)
