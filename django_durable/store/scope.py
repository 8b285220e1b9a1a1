"""What a claimer may serve, and under whose name it claims."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from typing import NamedTuple
from uuid import UUID

from django_durable.store.base import quoted


@dataclass(frozen=True)
class Lane:
    """Name one lane: the jobs of one queue, type, requirement and priority, resumed or not."""

    lane: int
    queue_name: str
    name: str
    requires: str | None
    priority: int
    resumed: bool

    # As elements of an array's text form.

    @cached_property
    def number_text(self) -> str:
        """Return the lane's number as a text."""
        return str(self.lane)

    @cached_property
    def priority_text(self) -> str:
        """Return the priority as a text."""
        return str(self.priority)

    @cached_property
    def queue_text(self) -> str:
        """Return the queue's name as a text in quotes."""
        return quoted(self.queue_name)


class TypeRate(NamedTuple):
    """Say how many attempts of a job type may start in so many seconds; aliases share the type."""

    type_name: str
    limit: int
    seconds: int


@dataclass(frozen=True)
class Scope:
    """Say which lanes a worker may serve; `queues` None means all."""

    names: frozenset[str]
    queues: frozenset[str] | None = None
    excluded_queues: frozenset[str] = frozenset()
    capabilities: frozenset[str] = frozenset()
    # Concurrency limits by job type, None for no limit; one that is not listed has a limit of one.
    limits: Mapping[str, int | None] = field(default_factory=dict)
    # Rate limits by job type, those of types that others serve too: one key may be theirs as well.
    rates: Mapping[str, TypeRate] = field(default_factory=dict)

    def serves(self, lane: Lane) -> bool:
        """Tell whether jobs of the lane may be claimed."""
        return (
            lane.name in self.names
            and (self.queues is None or lane.queue_name in self.queues)
            and lane.queue_name not in self.excluded_queues
            and (lane.requires is None or lane.requires in self.capabilities)
        )

    def rate_of(self, lane: Lane) -> TypeRate | None:
        """Return the rate that holds back jobs of the lane that have no key."""
        return None if lane.resumed else self.rates.get(lane.name)


@dataclass(frozen=True)
class Owner:
    """Say who claims: the worker's name, for people, and the claimer's identity, for the fence."""

    worker: str
    claimer: UUID
    lease: timedelta
