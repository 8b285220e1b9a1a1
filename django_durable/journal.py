"""The memory of a run: the checkpoints that its job has earned, read in one query."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django_durable.choices import StepKind, StepStatus
from django_durable.exceptions import DuplicateStep, DurableError

LONGEST_NAME = 255


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

    @property
    def is_final(self) -> bool:
        """Tell whether it will never change."""
        return self.status is not StepStatus.PENDING


class Journal:
    """Know which checkpoints are recorded, which were reached in this run, and what comes next."""

    def __init__(self, job: UUID) -> None:
        self._job = job
        self._lock = threading.RLock()
        self._known: dict[tuple[str, str], Known] | None = None
        self._reached: set[tuple[str, str]] = set()
        self._last = 0
        self._reached_last = 0
        self._missed = False

    def load(self) -> Mapping[tuple[str, str], Known]:
        """Read the checkpoints, once."""
        with self._lock:
            if self._known is None:
                # Late, as elsewhere under the context: its name is public without Django set up.
                from django_durable.models import Step

                found = Step.objects.filter(job_id=self._job).values_list(
                    "kind", "name", "ordinal", "status", "value", "error_class", "message",
                    "wake_at", "child_id", "tries",
                )  # fmt: skip
                self._known = {
                    (row[0], row[1]): Known(row[2], StepStatus(row[3]), *row[4:]) for row in found
                }
                self._last = max((known.ordinal for known in self._known.values()), default=0)
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
                self._reached_last = max(self._reached_last, known.ordinal)
            return known

    def next_ordinal(self) -> int:
        """Return the number of a checkpoint that is new."""
        with self._lock:
            self._last += 1
            return self._last

    def keep(self, kind: StepKind, name: str, known: Known) -> None:
        """Take note of what was just recorded."""
        with self._lock:
            known_all = self.load()
            assert isinstance(known_all, dict)  # noqa: S101 - it is our own
            known_all[(kind.value, name)] = known
            self._reached_last = max(self._reached_last, known.ordinal)

    def is_replaying(self) -> bool:
        """Tell whether the run has not yet come to a verb that is not recorded."""
        return not self._missed and len(self._reached) < len(self.load())

    def has_later(self) -> bool:
        """Tell whether a checkpoint is recorded that lies after all that were reached."""
        with self._lock:
            return any(
                known.ordinal > self._reached_last and key not in self._reached
                for key, known in self.load().items()
            )


def check_name(name: object) -> None:
    """Refuse what can't name a checkpoint."""
    if not isinstance(name, str) or not name or len(name) > LONGEST_NAME or "\x00" in name:
        raise DurableError(
            f"a checkpoint's name must be a text of 1 to {LONGEST_NAME} characters,"
            f" not {name!r:.100}"
        )
