"""The claim: which due jobs become whose, in one short transaction.

A worker knows the lanes that hold jobs and picks from those that it may serve. Jobs without a
budget (no concurrency key, no limited queue) are claimed by one statement. Where budgets matter,
their locks come first and the counting in a later statement.
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
from django_durable.store.enqueueing import LOCK_NAMESPACE

# One above the lowest bigint, which SQL reads as a minus before a number out of range.
LOWEST = -(2**63) + 1
HIGHEST = 2**63 - 1
START = (LOWEST, LOWEST)
LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)
BUDGET_KEY = 1
BUDGET_QUEUE = 2
# Dead index entries, which an old snapshot keeps from being removed, make a full look slow. One
# that took this long is repeated only after PAUSE_FACTOR times as long.
SLOW_LOOK = 0.004
PAUSE_FACTOR = 20
FORGET_LANES_AFTER = 60.0


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
    # Concurrency limits by job type; a type that is not listed has a limit of one.
    limits: Mapping[str, int] = field(default_factory=dict)

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


class Claims:
    """Claim jobs for one claimer; remembers lanes, bounds and whose turn it is, and no job."""

    def __init__(self, scope: Scope, owner: Owner) -> None:
        self.scope = scope
        self.owner = owner
        self._lanes: dict[int, Lane] = {}
        self._bounds: dict[int, datetime] = {}
        self._limited: dict[str, int] = {}
        self._keyed = False
        self._cursor = START
        self._forget_at = 0.0
        self._full_look_at = 0.0

    def look(self, db: BaseDatabaseWrapper) -> None:
        """Learn of lanes, keys and limits that came up since the last look."""
        now = time.monotonic()
        if now >= self._forget_at:
            self._lanes.clear()
            self._bounds.clear()
        while found := self._find_lanes(db):
            self._lanes.update(found)
        if now >= self._forget_at:
            self._forget_at = now + max(FORGET_LANES_AFTER, PAUSE_FACTOR * (time.monotonic() - now))
        keyed, names, limits = rows(db, "find_budgets")[0]
        self._keyed = keyed
        self._limited = dict(zip(names or [], limits or [], strict=True))

    def _find_lanes(self, db: BaseDatabaseWrapper) -> dict[int, Lane]:
        known = sorted(self._lanes)
        found = rows(db, "find_lanes", lows=[LOWEST, *known], highs=[*known, HIGHEST])
        return {row[0]: Lane(*row) for row in found}

    def claim(
        self, db: BaseDatabaseWrapper, slots: int, shunned: Sequence[UUID] = ()
    ) -> list[Claim]:
        """Claim up to `slots` due jobs in the order priority, due time, id, and return them so.

        One commit. Jobs in `shunned` are left alone. A crash before the commit claims nothing; one
        after it leaves claims that their lease, or their claimer's next look, gives back.
        """
        if slots < 1:
            return []
        if self._keyed or self._limited:
            claimed = self._claim_budgeted(db, slots, shunned)
        else:
            claimed = self._claim_free(db, slots, shunned)
        return sorted(claimed, key=lambda claim: (-claim.priority, claim.due_at, claim.id))

    def _peek_params(self, full: bool) -> dict[str, Any]:
        served = [lane for lane in self._lanes.values() if self.scope.serves(lane)]
        return {
            "lanes": [lane.lane for lane in served],
            "priorities": [lane.priority for lane in served],
            "queues": [lane.queue_name for lane in served],
            "bounds": [
                LONG_AGO if full else self._bounds.get(lane.lane, LONG_AGO) for lane in served
            ],
        }

    def _claim_free(
        self, db: BaseDatabaseWrapper, slots: int, shunned: Sequence[UUID]
    ) -> list[Claim]:
        started = time.monotonic()
        full = started >= self._full_look_at
        found = rows(
            db,
            "claim",
            slots=slots,
            # Rows that other claimers are taking at this moment lie in front.
            reach=slots + max(slots // 2, 10),
            limited=False,
            shunned=list(shunned),
            **self._peek_params(full),
            **vars(self.owner),
        )
        if full:
            self._rest_after(time.monotonic() - started)
        return self._taken(found)

    def _rest_after(self, took: float) -> None:
        if took > SLOW_LOOK:
            self._full_look_at = time.monotonic() + PAUSE_FACTOR * took

    def _taken(self, found: list[tuple[Any, ...]]) -> list[Claim]:
        claims = [Claim._make(row) for row in found]
        if claims and isinstance(claims[0].options, str):
            # Django's cursors hand jsonb over as text.
            claims = [
                claim._replace(
                    options=json.loads(claim.options),  # type: ignore[arg-type]
                    metadata=json.loads(claim.metadata),  # type: ignore[arg-type]
                )
                for claim in claims
            ]
        bounds = self._bounds
        for claim in claims:
            # A lane's jobs are taken in due order, so that what lies before is (as good as) empty.
            if claim.due_at > bounds.get(claim.lane, LONG_AGO):
                bounds[claim.lane] = claim.due_at
        return claims

    def _claim_budgeted(
        self, db: BaseDatabaseWrapper, slots: int, shunned: Sequence[UUID]
    ) -> list[Claim]:
        """Claim from one window of keys, or from the next ones while they have nothing free."""
        while True:
            with atomic(db):
                candidates = self._candidates(db, slots, shunned)
                picked = self._within_budgets(db, candidates, slots)
                found = self._take(db, picked) if picked else []
            if found or self._cursor == START:
                return self._taken(found)

    def _take(self, db: BaseDatabaseWrapper, picked: list[Candidate]) -> list[tuple[Any, ...]]:
        return rows(
            db,
            "claim_listed",
            slots=len(picked),
            ids=[candidate.id for candidate in picked],
            priorities=[candidate.priority for candidate in picked],
            dues=[candidate.due_at for candidate in picked],
            **vars(self.owner),
        )

    def _candidates(
        self, db: BaseDatabaseWrapper, slots: int, shunned: Sequence[UUID]
    ) -> list[Candidate]:
        reach = {"reach": 2 * slots + 10, "shunned": list(shunned)}
        plain = rows(db, "peek", limited=True, **reach, **self._peek_params(full=True))
        found = [Candidate(*row) for row in plain]
        pairs = 2 * slots + 20
        scope = self.scope
        heads = rows(
            db,
            "keyed_heads",
            after_key=self._cursor[0],
            after_lane=self._cursor[1],
            pairs=pairs,
            names=list(scope.names),
            queues=None if scope.queues is None else list(scope.queues),
            excluded_queues=list(scope.excluded_queues),
            capabilities=list(scope.capabilities),
            **reach,
        )
        last = heads[-1] if heads else None
        # Past the last pair the turn starts anew.
        self._cursor = (last[1], last[2]) if last and last[0] >= pairs else START
        found += [
            Candidate(job, priority, due, queue, key, name)
            for _step, key, _lane, job, priority, due, queue, name in heads
            if job is not None
        ]
        return sorted(found, key=lambda c: (-c.priority, c.due_at, c.id))

    def _within_budgets(
        self, db: BaseDatabaseWrapper, candidates: list[Candidate], slots: int
    ) -> list[Candidate]:
        """Lock the budgets, then count, then pick in order what fits them."""
        wanted = {budget for c in candidates for budget in self._budgets_of(c)}
        free: dict[Budget, int] = {}
        if wanted:
            kinds, tokens = zip(*sorted(wanted), strict=True)
            held = rows(
                db, "lock_budgets", kinds=list(kinds), tokens=list(tokens), namespace=LOCK_NAMESPACE
            )
            free = dict.fromkeys(held, 0)
            counted = rows(
                db,
                "count_budgets",
                keys=[int(token) for kind, token in free if kind == BUDGET_KEY],
                queues=[token for kind, token in free if kind == BUDGET_QUEUE],
            )
            for kind, token, running in counted:
                free[(kind, token)] = running
        picked = []
        for candidate in candidates:
            budgets = self._budgets_of(candidate)
            if all(b in free and free[b] < self._limit(b, candidate) for b in budgets):
                for budget in budgets:
                    free[budget] += 1
                picked.append(candidate)
                if len(picked) == slots:
                    break
        return picked

    def _budgets_of(self, candidate: Candidate) -> list[Budget]:
        budgets = []
        if candidate.key is not None:
            budgets.append((BUDGET_KEY, str(candidate.key)))
        if candidate.queue_name in self._limited:
            budgets.append((BUDGET_QUEUE, candidate.queue_name))
        return budgets

    def _limit(self, budget: Budget, candidate: Candidate) -> int:
        if budget[0] == BUDGET_QUEUE:
            return self._limited[budget[1]]
        return self.scope.limits.get(candidate.name, 1)


Budget = tuple[int, str]


@dataclass(frozen=True, slots=True)
class Candidate:
    """Name a due job that the claim may pick; `key` and `name` only where it has a key."""

    id: UUID
    priority: int
    due_at: datetime
    queue_name: str
    key: int | None = None
    name: str = ""
