"""The claim: which due jobs become whose, in one short transaction.

A worker knows the lanes that hold jobs and picks from those that it may serve. While no budget
matters (no concurrency key, no limited queue), one statement claims; else see `budgets.py`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from django.db.backends.base.base import BaseDatabaseWrapper

from django_durable.store.base import atomic, rows
from django_durable.store.budgets import HIGHEST, LOWEST, Budgets, Candidate

LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)
# Dead index entries, which an old snapshot keeps from being removed, make a full look slow. One
# that took this long is repeated only after PAUSE_FACTOR times as long.
SLOW_LOOK = 0.004
PAUSE_FACTOR = 20
FORGET_LANES_AFTER = 60.0
# Rows that other claimers are taking at this moment lie in front: how far one try after another
# looks past them.
SPREADS = (1, 4, 16)


@dataclass(frozen=True)
class Lane:
    """Name one lane: the jobs of one queue, type, requirement and priority."""

    lane: int
    queue_name: str
    name: str
    requires: str | None
    priority: int


@dataclass(frozen=True)
class Scope:
    """Say which lanes a worker may serve; `queues` None means all."""

    names: frozenset[str]
    queues: frozenset[str] | None = None
    excluded_queues: frozenset[str] = frozenset()
    capabilities: frozenset[str] = frozenset()
    # Concurrency limits by job type, None for no limit; one that is not listed has a limit of one.
    limits: Mapping[str, int | None] = field(default_factory=dict)

    def serves(self, lane: Lane) -> bool:
        """Tell whether jobs of the lane may be claimed."""
        return (
            lane.name in self.names
            and (self.queues is None or lane.queue_name in self.queues)
            and lane.queue_name not in self.excluded_queues
            and (lane.requires is None or lane.requires in self.capabilities)
        )


@dataclass(frozen=True)
class Owner:
    """Say who claims: the worker's name, for people, and the claimer's identity, for the fence."""

    worker: str
    claimer: UUID
    lease: timedelta


class Claim(NamedTuple):
    """Hold a claimed job as its run needs it; (id, epoch) is the right to write."""

    id: UUID
    epoch: int
    name: str
    queue_name: str
    priority: int
    attempt: int
    max_attempts: int | None
    args: str
    kwargs: str
    options: dict[str, Any]
    run_after: datetime
    due_at: datetime
    claimed_at: datetime
    rejections: int
    resumed: bool
    parent_id: UUID | None
    root_id: UUID
    depth: int
    delivery_id: UUID | None
    concurrency_key: str | None
    idempotency_key: str | None
    requires: str | None
    metadata: dict[str, str]
    enqueued_at: datetime
    started_at: datetime
    lane: int
    schedule_id: int | None = None
    scheduled_for: datetime | None = None


class Claims:
    """Claim jobs for one claimer; remembers lanes, bounds and whose turn it is, and no job.

    `contended` tells after a claim that brought less than was asked for: other claims were
    deciding over the same jobs or budgets at that moment, so it is worth asking again soon.
    """

    def __init__(self, scope: Scope, owner: Owner) -> None:
        self.scope = scope
        self.owner = owner
        self.contended = False
        self._budgets = Budgets(scope)
        self._lanes: dict[int, Lane] = {}
        self._bounds: dict[int, datetime] = {}
        self._lanes_at = 0.0
        self._forget_at = 0.0
        self._full_look_at = 0.0

    def look(self, db: BaseDatabaseWrapper) -> None:
        """Learn of lanes, keys and limits that came up since the last look."""
        self._find_lanes(db)
        self._budgets.look(db)

    @property
    def look_from(self) -> float:
        """Return from when on it is fair to look: a slow look is followed by a rest."""
        return self._lanes_at

    @property
    def full_from(self) -> float:
        """Return from when on a claim finds also what came back to an earlier place."""
        return self._full_look_at

    def _find_lanes(self, db: BaseDatabaseWrapper) -> None:
        started = time.monotonic()
        is_fresh = started >= self._forget_at
        known = [] if is_fresh else sorted(self._lanes)
        found = rows(db, "find_lanes", lows=[LOWEST, *known], highs=[*known, HIGHEST])
        if is_fresh:
            self._lanes = {}
            self._forget_at = started + FORGET_LANES_AFTER
        self._lanes.update((row[0], Lane(*row)) for row in found)
        self._lanes_at = _rest(started)

    def claim(
        self, db: BaseDatabaseWrapper, slots: int, shunned: Sequence[UUID] = ()
    ) -> list[Claim]:
        """Claim up to `slots` due jobs in the order priority, due time, id, and return them so.

        Jobs in `shunned` are left alone. A crash before a commit claims nothing; one after it
        leaves claims that their lease, or their claimer's `release` of what it does not hold,
        gives back.
        """
        take = self._take_budgeted if self._budgets.matter else self._take_free
        claimed = take(db, slots, list(shunned)) if slots > 0 else []
        return sorted(claimed, key=lambda claim: (-claim.priority, claim.due_at, claim.id))

    def _take_free(self, db: BaseDatabaseWrapper, slots: int, shunned: list[UUID]) -> list[Claim]:
        """Pick and take in one statement, where no budget matters."""
        claimed: list[Claim] = []
        for spread in SPREADS:
            wanted = slots - len(claimed)
            reach = spread * (2 * wanted + 10)
            found = self._walk(
                db, "claim", slots=wanted, reach=reach, shunned=shunned, **vars(self.owner)
            )
            picked, taken = self._taken(found)
            claimed += taken
            self.contended = picked > len(taken) and len(claimed) < slots
            if not self.contended:
                break
        return claimed

    def _take_budgeted(
        self, db: BaseDatabaseWrapper, slots: int, shunned: list[UUID]
    ) -> list[Claim]:
        """Look for what seems to fit, lock the budgets, count again, and take; one transaction."""
        budgets = self._budgets
        rooms = budgets.rooms(db)
        keyed = budgets.keyed(db, rooms, slots, shunned)
        if not keyed and not any(rooms.get(lane.queue_name) for lane in self._served()):
            return self._take_free(db, slots, shunned)
        reach = 2 * slots + 10
        with atomic(db):
            peeked = self._walk(db, "peek_limited", reach=reach, shunned=shunned, rooms_of=rooms)
            plain = [Candidate(*row) for row in peeked]
            picked = budgets.pick(db, _merge(plain, keyed), slots)
            taken = self._take_listed(db, picked) if picked else []
        self.contended = len(taken) < slots and (budgets.contended or len(taken) < len(picked))
        return taken

    def _take_listed(self, db: BaseDatabaseWrapper, picked: list[Candidate]) -> list[Claim]:
        found = rows(
            db,
            "claim_listed",
            slots=len(picked),
            ids=[candidate.id for candidate in picked],
            priorities=[candidate.priority for candidate in picked],
            dues=[candidate.due_at for candidate in picked],
            lanes=[candidate.lane for candidate in picked],
            keys=[candidate.key for candidate in picked],
            **vars(self.owner),
        )
        return self._taken(found)[1]

    def _served(self) -> list[Lane]:
        return [lane for lane in self._lanes.values() if self.scope.serves(lane)]

    def _walk(
        self,
        db: BaseDatabaseWrapper,
        statement: str,
        rooms_of: Mapping[str, int] | None = None,
        **params: Any,
    ) -> list[tuple[Any, ...]]:
        """Run a statement that walks the lanes; from their bounds on while full looks are slow."""
        started = time.monotonic()
        is_full = started >= self._full_look_at
        if is_full:
            self._bounds = {}
        served = self._served()
        if rooms_of is not None:
            served = [lane for lane in served if rooms_of.get(lane.queue_name) != 0]
            params["rooms"] = [rooms_of.get(lane.queue_name) for lane in served]
        found = rows(
            db,
            statement,
            lanes=[lane.lane for lane in served],
            priorities=[lane.priority for lane in served],
            queues=[lane.queue_name for lane in served],
            bounds=[self._bounds.get(lane.lane, LONG_AGO) for lane in served],
            **params,
        )
        if is_full and time.monotonic() - started > SLOW_LOOK:
            self._find_bounds(db, served)
        return found

    def _find_bounds(self, db: BaseDatabaseWrapper, served: list[Lane]) -> None:
        """Learn where the lanes' jobs begin; dead index entries of an old snapshot lie before.

        If the entries made the look slow, and not the disk, then this is slow too, and the next
        full look, which finds what came back to an earlier place, has to wait.
        """
        started = time.monotonic()
        self._bounds = dict(rows(db, "find_bounds", lanes=[lane.lane for lane in served]))
        self._full_look_at = _rest(started)

    def _taken(self, found: list[tuple[Any, ...]]) -> tuple[int, list[Claim]]:
        claims = [_as_claim(row[1:]) for row in found if row[1] is not None]
        for claim in claims:
            if claim.lane in self._bounds and claim.concurrency_key is None:
                # A lane's jobs are taken in due order, so what lies before is as good as empty.
                self._bounds[claim.lane] = max(self._bounds[claim.lane], claim.due_at)
        return found[0][0], claims


_OPTIONS = Claim._fields.index("options")
_METADATA = Claim._fields.index("metadata")


def _as_claim(row: tuple[Any, ...]) -> Claim:
    # Most jobs have neither, and then there is nothing to read.
    if row[_OPTIONS] == "{}" and row[_METADATA] == "{}":
        return Claim._make(
            (*row[:_OPTIONS], {}, *row[_OPTIONS + 1 : _METADATA], {}, *row[_METADATA + 1 :])
        )
    claim = Claim._make(row)
    return claim._replace(options=json.loads(row[_OPTIONS]), metadata=json.loads(row[_METADATA]))


def _rest(started: float) -> float:
    """Return when to do again what began at `started`: at once unless it was slow."""
    now = time.monotonic()
    return now + PAUSE_FACTOR * (now - started) if now - started > SLOW_LOOK else now


def _merge(plain: list[Candidate], keyed: list[Candidate]) -> list[Candidate]:
    """Merge by priority, then due time; those with keys keep their turns among themselves."""
    merged: list[Candidate] = []
    plain, keyed = plain[::-1], keyed[::-1]
    while plain and keyed:
        one, other = plain[-1], keyed[-1]
        is_first = (-one.priority, one.due_at) <= (-other.priority, other.due_at)
        merged.append(plain.pop() if is_first else keyed.pop())
    return merged + plain[::-1] + keyed[::-1]
