"""The memory of a run: the checkpoints that its job has earned, read in one query."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django_durable import payloads
from django_durable.choices import StepKind, StepStatus
from django_durable.exceptions import DuplicateStep, DurableError

LONGEST_NAME = 255
# What PostgreSQL has no place for: NUL, and halves of surrogate pairs.
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
Row = tuple[Any, ...]


@dataclass
class Known:
    """Be a checkpoint as the run knows it."""

    ordinal: int
    status: StepStatus
    value: Any = None
    error_class: str = ""
    message: str = ""
    wake_at: datetime | None = None
    child: UUID | None = None
    tries: int = 0
    # The key of its row, if it was recorded before this run.
    row: int = 0

    @property
    def place(self) -> tuple[int, int]:
        """Return what orders the recorded ones; of one ordinal the rows tell which came first."""
        return self.ordinal, self.row

    @property
    def is_final(self) -> bool:
        """Tell whether it will never change."""
        return self.status is not StepStatus.PENDING


def _known(ordinal: int, status: str, value: str | None, *others: Any) -> Known:
    decoded = None if value is None else payloads.decode(value)
    return Known(ordinal, StepStatus(status), decoded, *others)


class Journal:
    """Know which checkpoints are recorded, which were reached in this run, and what comes next."""

    def __init__(
        self, read: Callable[[], Iterable[Row]], recorded: Iterable[Row] | None = None
    ) -> None:
        self._read = read
        self._recorded = recorded
        self._lock = threading.RLock()
        self._known: dict[tuple[str, str], Known] | None = None
        self._reached: set[tuple[str, str]] = set()
        # The ordinals that were recorded before this run, and where in their order it is.
        self._ordinals: set[int] = set()
        self._ordinal = 0
        self._reached_last = (0, 0)
        self._missed = False

    @property
    def is_at_hand(self) -> bool:
        """Tell whether the checkpoints are known without asking the database."""
        return self._known is not None or self._recorded is not None

    def load(self) -> Mapping[tuple[str, str], Known]:
        """Return the checkpoints; they are read once, unless they came with the claim."""
        with self._lock:
            if self._known is None:
                recorded = self._recorded
                if recorded is None:
                    recorded = self._read()
                self._known = {(row[0], row[1]): _known(*row[2:]) for row in recorded}
                self._ordinals = {known.ordinal for known in self._known.values()}
                # An undo job comes to nothing again that it has taken back.
                behind = [
                    known.ordinal
                    for (kind, _name), known in self._known.items()
                    if kind == StepKind.COMPENSATION
                ]
                self._ordinal = max(behind, default=0)
            return self._known

    def enter(self, kind: StepKind, name: str) -> Known | None:
        """Reach a checkpoint in this run; return what is recorded of it.

        Raises `DuplicateStep` for the second time in one run.
        """
        check_name(name)
        key = (kind.value, name)
        with self._lock:
            known = self.load().get(key)
            if key in self._reached:
                raise DuplicateStep(f"the {kind.value} {name!r} was used already in this run")
            self._reached.add(key)
            if known is None or not known.is_final:
                self._missed = True
            if known is not None:
                self._ordinal = max(self._ordinal, known.ordinal)
                if kind is not StepKind.PATCH:
                    self._reached_last = max(self._reached_last, known.place)
            return known

    def next_ordinal(self) -> int:
        """Return the number of a checkpoint that is new: where in the order the run is.

        So what is earned anew, or added to the code, lies before what is reached after it. If there
        is no number left between two that are recorded, it has that of the first; see `place`.
        """
        with self._lock:
            if self._ordinal + 1 not in self._ordinals:
                self._ordinal += 1
            return self._ordinal

    def keep(self, kind: StepKind, name: str, known: Known) -> None:
        """Take note of what was just recorded."""
        with self._lock:
            known_all = self.load()
            assert isinstance(known_all, dict)  # noqa: S101 - it is our own
            known_all[(kind.value, name)] = known

    def reread(self, kind: StepKind, name: str) -> Known | None:
        """Return what the database has of a checkpoint, whatever this run has heard of it.

        All that is recorded is known then.
        """
        found = {(row[0], row[1]): _known(*row[2:]) for row in self._read()}
        for (its_kind, its_name), known in found.items():
            self.keep(StepKind(its_kind), its_name, known)
        return found.get((kind.value, name))

    def is_replaying(self) -> bool:
        """Tell whether the run has not yet come to a verb that is not recorded."""
        return not self._missed and len(self._reached) < len(self.load())

    def has(self, kind: StepKind, name: str) -> bool:
        """Tell whether a checkpoint is recorded."""
        return (kind.value, name) in self.load()

    def has_later(self, *, anywhere: bool = False) -> bool:
        """Tell whether a checkpoint is recorded that lies after all that were reached.

        Those that are new in this run don't count as reached: code that was put in before the
        recorded ones is no sign that they are behind. Nor do answers about patches count. Where
        several tasks come to verbs the order says nothing: then those `anywhere` count as later.
        """
        with self._lock:
            last = (0, 0) if anywhere else self._reached_last
            return any(
                known.place > last and key not in self._reached and key[0] != StepKind.PATCH
                for key, known in self.load().items()
            )


def check_name(name: object, of: str = "a checkpoint") -> None:
    """Refuse what can't name a checkpoint or a signal."""
    if (
        not isinstance(name, str)
        or not 0 < len(name) <= LONGEST_NAME
        or _UNSTORABLE.search(name) is not None
    ):
        raise DurableError(
            f"{of}'s name must be a text of 1 to {LONGEST_NAME} characters, not {name!r:.100}"
        )
