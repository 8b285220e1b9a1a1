"""What the run of a claim can come to; the recorder turns each into a write of the store."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from django_durable.store import Failure, Right, Success


@dataclass(frozen=True, slots=True)
class Rejected:
    """Say that this worker did not want the job, or that the job rejected itself."""

    right: Right
    delay: timedelta


@dataclass(frozen=True, slots=True)
class Abandoned:
    """Say that the claim is lost: there is nothing to write."""

    right: Right


Outcome = Success | Failure | Rejected | Abandoned
