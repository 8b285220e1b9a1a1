"""The budgets that hold jobs back: concurrency keys and queues with a limit.

A claim looks for what seems to fit, then locks the budgets of that, then counts again in a later
statement: two claims never decide over one budget at the same time. The locks are tried, never
waited for; what another claim is deciding over is left to it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from django.db.backends.base.base import BaseDatabaseWrapper

from django_durable.store.base import rows
from django_durable.store.enqueueing import LOCK_NAMESPACE

if TYPE_CHECKING:
    from django_durable.store.claiming import Scope

LOCK_KEY = 1
LOCK_QUEUE = 2
NO_LIMIT = 2**31 - 1
# One above the lowest bigint, which SQL reads as a minus before a number out of range.
LOWEST = -(2**63) + 1
HIGHEST = 2**63 - 1
START, END = (LOWEST, LOWEST), (HIGHEST, HIGHEST)
# Pairs of key and lane that one statement visits at most.
WIDEST = 5000
# The step of the row that says that the keys were visited.
BIG = -1

Budget = tuple[int, str]
Pair = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Candidate:
    """Name a due job that a claim may pick; `rank` is its place among those of its key."""

    id: UUID
    priority: int
    due_at: datetime
    queue_name: str
    lane: int
    key: int | None = None
    limit: int = NO_LIMIT
    rank: int = 0


class KeyedRow(NamedTuple):
    """Hold a due job as the looks at keys bring it; no limit where this worker may not serve it."""

    key: int
    lane: int
    id: UUID
    due_at: datetime
    queue_name: str
    limit: int | None
    room: int | None

    def as_candidate(self, priority: int, rank: int) -> Candidate:
        """Return what a claim may pick."""
        limit = NO_LIMIT if self.limit is None else self.limit
        return Candidate(
            self.id, priority, self.due_at, self.queue_name, self.lane, self.key, limit, rank
        )


class Budgets:
    """Find due jobs that fit their budgets; remembers the limits of queues and whose turn it is."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        limits = {name: scope.limits.get(name, 1) for name in scope.names}
        self._limits = json.dumps({n: NO_LIMIT if x is None else x for n, x in limits.items()})
        self._queues: dict[str, int] = {}
        # The priorities of jobs with a key, highest first.
        self._levels: list[int] = []
        self._turns: dict[int, Pair] = {}
        self.matter = False
        self.contended = False

    def look(self, db: BaseDatabaseWrapper) -> None:
        """Learn the limits of queues and the priorities of jobs with keys."""
        levels, names, limits = rows(db, "find_budgets")[0]
        self._levels = levels or []
        self._queues = dict(zip(names or [], limits or [], strict=True))
        self.matter = bool(self._levels or self._queues)

    def rooms(self, db: BaseDatabaseWrapper) -> dict[str, int]:
        """Return how many more jobs seem to fit each limited queue."""
        running = self._count(db, [(LOCK_QUEUE, name) for name in self._queues])
        return {
            name: max(limit - running[(LOCK_QUEUE, name)], 0)
            for name, limit in self._queues.items()
        }

    def keyed(
        self,
        db: BaseDatabaseWrapper,
        rooms: Mapping[str, int],
        slots: int,
        shunned: Sequence[UUID],
    ) -> list[Candidate]:
        """Return due jobs that seem to fit, by priority and then each key in its turn."""
        found: list[Candidate] = []
        for level in self._levels:
            if len(found) >= slots:
                break
            found += self._turn(db, level, rooms, slots - len(found), shunned)
        return found

    def _turn(
        self,
        db: BaseDatabaseWrapper,
        level: int,
        rooms: Mapping[str, int],
        wanted: int,
        shunned: Sequence[UUID],
    ) -> list[Candidate]:
        """Give the keys of one priority their turn, from where the last claim stopped."""
        params = {**self._serving(rooms), "level": level, "wanted": wanted, "shunned": shunned}
        start = self._turns.get(level, START)
        found: list[Candidate] = []
        ranks: Counter[int] = Counter()
        queued: Counter[str] = Counter()
        for window in self._windows(db, start, params):
            for row in window:
                if row.limit is None or row.room is None or ranks[row.key] >= row.room:
                    continue
                if queued[row.queue_name] >= rooms.get(row.queue_name, NO_LIMIT):
                    continue
                found.append(row.as_candidate(level, ranks[row.key]))
                ranks[row.key] += 1
                queued[row.queue_name] += 1
            if len(found) >= wanted:
                break
        return sorted(found, key=lambda candidate: candidate.rank)[:wanted]

    def _serving(self, rooms: Mapping[str, int]) -> dict[str, Any]:
        scope = self._scope
        full = [name for name, room in rooms.items() if room < 1]
        return {
            "limits": self._limits,
            "queues": None if scope.queues is None else list(scope.queues),
            "excluded_queues": [*scope.excluded_queues, *full],
            "capabilities": list(scope.capabilities),
        }

    def _windows(
        self, db: BaseDatabaseWrapper, start: Pair, params: dict[str, Any]
    ) -> Iterator[list[KeyedRow]]:
        """Yield the due jobs of the pairs of key and lane, from `start` on and around to it."""
        probe = 2 * params["wanted"] + 50
        pairs = 2 * params["wanted"] + 20
        for after, until in ((start, END), (START, start)):
            while after < until:
                found = rows(
                    db,
                    "keyed",
                    probe=probe,
                    after_key=after[0],
                    after_lane=after[1],
                    until_key=until[0],
                    until_lane=until[1],
                    pairs=pairs,
                    **params,
                )
                window = [KeyedRow(*row[1:]) for row in found if row[3] is not None]
                if probe and not any(row[0] == BIG for row in found):
                    # These are all that are due; no need to visit the keys.
                    yield sorted(
                        window, key=lambda row: (row[:2] <= start, row[:2], row.due_at, row.id)
                    )
                    return
                yield window
                last = max(found, key=lambda row: row[0])
                after = last[1:3] if last[0] == pairs else until
                probe, pairs = 0, min(2 * pairs, WIDEST)

    def pick(
        self, db: BaseDatabaseWrapper, candidates: Sequence[Candidate], slots: int
    ) -> list[Candidate]:
        """Lock the budgets, then count, then pick in order what fits them."""
        wanted = {budget for candidate in candidates for budget in self._budgets_of(candidate)}
        counts: dict[Budget, int] = {}
        if wanted:
            kinds, tokens = zip(*sorted(wanted), strict=True)
            held = rows(
                db, "lock_budgets", kinds=list(kinds), tokens=list(tokens), namespace=LOCK_NAMESPACE
            )
            counts = self._count(db, held)
        picked: list[Candidate] = []
        self.contended = False
        for candidate in candidates:
            budgets = self._budgets_of(candidate)
            # What another claim decides over at this moment counts as full.
            if all(counts.get(budget, limit) < limit for budget, limit in budgets.items()):
                for budget in budgets:
                    counts[budget] += 1
                picked.append(candidate)
                if len(picked) == slots:
                    break
            else:
                # It seemed to fit a moment ago.
                self.contended = True
        self._pass_on(picked)
        return picked

    def _budgets_of(self, candidate: Candidate) -> dict[Budget, int]:
        budgets: dict[Budget, int] = {}
        if candidate.key is not None:
            budgets[(LOCK_KEY, str(candidate.key))] = candidate.limit
        if candidate.queue_name in self._queues:
            budgets[(LOCK_QUEUE, candidate.queue_name)] = self._queues[candidate.queue_name]
        return budgets

    def _count(self, db: BaseDatabaseWrapper, budgets: Sequence[Budget]) -> dict[Budget, int]:
        counts = dict.fromkeys(budgets, 0)
        if counts:
            for kind, token, running in rows(
                db,
                "count_budgets",
                keys=[int(token) for kind, token in counts if kind == LOCK_KEY],
                queues=[token for kind, token in counts if kind == LOCK_QUEUE],
            ):
                counts[(kind, token)] = running
        return counts

    def _pass_on(self, picked: Sequence[Candidate]) -> None:
        """Let the next claim begin after the last key that this one gave its turn."""
        for candidate in picked:
            if candidate.key is not None and candidate.rank == 0:
                self._turns[candidate.priority] = (candidate.key, candidate.lane)
