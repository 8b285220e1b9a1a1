"""The budgets that hold jobs back: concurrency keys, limits of queues, and rates.

A claim looks for what seems to fit, then locks the budgets of that, then counts again in a later
statement: two claims never decide over one budget at the same time. The locks are tried, never
waited for; what another claim is deciding over is left to it. What starts under a rate is logged
in the claim's own transaction.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from typing import Any, NamedTuple
from uuid import UUID

from django.db.backends.base.base import BaseDatabaseWrapper

from django_durable.store.base import rows
from django_durable.store.enqueueing import LOCK_NAMESPACE
from django_durable.store.quotas import (
    LOCK_KEY,
    LOCK_QUEUE,
    LOCK_TYPE,
    NO_LIMIT,
    Budget,
    Counts,
    Quota,
    log_name,
)
from django_durable.store.scope import Lane, Scope, TypeRate

# One above the lowest bigint, which SQL reads as a minus before a number out of range.
LOWEST = -(2**63) + 1
HIGHEST = 2**63 - 1
START, END = (LOWEST, LOWEST), (HIGHEST, HIGHEST)
# Pairs of key and lane that one statement visits at most.
WIDEST = 5000
# The step of the row that says that the keys were visited.
BIG = -1
# How long a start is kept at least, in seconds: the rate of its queue may get a longer window.
KEEP_STARTS = 60

Pair = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Candidate:
    """Name a due job that a claim may pick; `rank` is its place among those of its key."""

    id: UUID
    priority: int
    due_at: datetime
    queue_name: str
    lane: int
    name: str
    resumed: bool
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
    name: str
    resumed: bool
    # Held back by nothing but a rate; and after how many seconds that of its key has room.
    is_paced: bool
    opens_in: float | None

    def as_candidate(self, priority: int, rank: int) -> Candidate:
        """Return what a claim may pick."""
        return Candidate(
            self.id,
            priority,
            self.due_at,
            self.queue_name,
            self.lane,
            self.name,
            self.resumed,
            self.key,
            NO_LIMIT if self.limit is None else self.limit,
            rank,
        )


class Rooms:
    """Say of lanes how many more of their jobs seem to fit, as nothing was locked."""

    def __init__(self, scope: Scope, queues: Sequence[str], counts: Counts) -> None:
        self._scope = scope
        self._counts = counts
        self.queues = set(queues)

    def _queue(self, name: str, *, resumed: bool) -> dict[Quota, int]:
        known = name in self.queues
        return dict(self._counts.of_queue(name, resumed=resumed)) if known else {}

    def of_queue(self, name: str, *, resumed: bool) -> int | None:
        """Return the room in the lane's queue, None if that has no limit."""
        if name not in self.queues:
            return None
        return self._counts.room(self._queue(name, resumed=resumed))

    def of_type(self, lane: Lane) -> int | None:
        """Return how many jobs of the lane's type may start, None if it has no rate."""
        rate = self._scope.rate_of(lane)
        return None if rate is None else self._counts.room(_type_quota(rate))

    def opens_in(self, lane: Lane) -> float:
        """Return after how many seconds rates that hold the lane back may have room."""
        rate = self._scope.rate_of(lane)
        quotas = self._queue(lane.queue_name, resumed=lane.resumed)
        return self._counts.opens_in(quotas | (_type_quota(rate) if rate else {}))

    def queue_opens_in(self, name: str) -> float:
        """Return after how many seconds the rate of the queue may have room."""
        return self._counts.opens_in(self._queue(name, resumed=False))


def _type_quota(rate: TypeRate) -> dict[Quota, int]:
    return {(LOCK_TYPE, rate.type_name, rate.seconds): rate.limit}


class Budgets:
    """Find due jobs that fit; remembers which queues have limits, and whose turn it is.

    `opens_in` tells after a look for what fits when rates that hold due jobs with keys back may
    have room.
    """

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        limits = {name: scope.limits.get(name, 1) for name in scope.names}
        self._limits = json.dumps({n: NO_LIMIT if x is None else x for n, x in limits.items()})
        self._rates = json.dumps({n: (r.limit, r.seconds) for n, r in scope.rates.items()})
        self._queues: list[str] = []
        # The priorities of jobs with a key, highest first.
        self.levels: list[int] = []
        self._turns: dict[int, Pair] = {}
        self.matter = False
        self.contended = False
        # Something was left, since what is before it under its key had no room a moment before.
        self.overtaking = False
        self.opens_in = math.inf
        self._counts = Counts((), ())

    def look(self, db: BaseDatabaseWrapper, lanes: Sequence[Lane]) -> None:
        """Learn which queues have limits and the priorities of jobs with keys."""
        levels, names = rows(db, "find_budgets")[0]
        self.levels = levels or []
        self._queues = names or []
        has_rates = any(self._scope.rate_of(lane) for lane in lanes)
        self.matter = bool(self.levels or self._queues or has_rates)

    def rooms(self, db: BaseDatabaseWrapper, lanes: Sequence[Lane]) -> Rooms:
        """Return how many more jobs seem to fit."""
        budgets: set[Budget] = {(LOCK_QUEUE, name) for name in self._queues}
        rates = {rate for lane in lanes if (rate := self._scope.rate_of(lane))}
        quotas = {quota for rate in rates for quota in _type_quota(rate)}
        counts = self._count(db, budgets | {quota[:2] for quota in quotas}, quotas)
        return Rooms(self._scope, self._queues, counts)

    def keyed(
        self,
        db: BaseDatabaseWrapper,
        rooms: Rooms,
        slots: int,
        shunned: Sequence[UUID],
        *,
        fair: bool = False,
    ) -> list[Candidate]:
        """Return due jobs that seem to fit, by priority and then each key in its turn.

        With `fair`, of each priority as many as there are slots, the oldest first.
        """
        self.opens_in = math.inf
        self.overtaking = False
        found: list[Candidate] = []
        blocked: dict[int, int] = {}
        for level in self.levels:
            if len(found) >= slots and not fair:
                break
            wanted = slots if fair else slots - len(found)
            found += self._turn(db, level, rooms, wanted, shunned, blocked)
        return sorted(found, key=lambda candidate: candidate.due_at) if fair else found

    def _turn(
        self,
        db: BaseDatabaseWrapper,
        level: int,
        rooms: Rooms,
        wanted: int,
        shunned: Sequence[UUID],
        blocked: dict[int, int],
    ) -> list[Candidate]:
        """Give the keys of one priority their turn, from where the last claim stopped.

        `blocked` has the limits that seemed to hold back what is before others of its key.
        """
        params = {**self._serving(rooms), "level": level, "wanted": wanted, "shunned": shunned}
        start = self._turns.get(level, START)
        turn = _Turn(self, level, rooms, blocked)
        left: list[KeyedRow] = []
        for window in self._windows(db, start, params):
            # The last key may have more lanes in the next window.
            together = left + window
            last = together[-1].key if together else None
            turn.take(row for row in together if row.key != last)
            left = [row for row in together if row.key == last]
            if len(turn.found) >= wanted:
                break
        else:
            turn.take(left)
        return sorted(turn.found, key=lambda candidate: candidate.rank)[:wanted]

    def _serving(self, rooms: Rooms) -> dict[str, Any]:
        scope = self._scope
        full = [name for name in self._queues if not rooms.of_queue(name, resumed=True)]
        spent = [name for name in self._queues if not rooms.of_queue(name, resumed=False)]
        return {
            "limits": self._limits,
            "rates": self._rates,
            "queues": None if scope.queues is None else list(scope.queues),
            "excluded_queues": [*scope.excluded_queues, *full],
            "limited": self._queues,
            "spent": spent,
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
                found.sort(key=lambda row: row[0])
                window = [KeyedRow(*row[1:]) for row in found if row[3] is not None]
                if probe and not any(row[0] == BIG for row in found):
                    # These are all that are due; no need to visit the keys.
                    yield sorted(window, key=lambda row: (row.key <= start[0], row.key))
                    return
                yield window
                after = found[-1][1:3] if found[-1][0] == pairs else until
                probe, pairs = 0, min(2 * pairs, WIDEST)

    def pick(
        self, db: BaseDatabaseWrapper, candidates: Sequence[Candidate], slots: int
    ) -> list[Candidate]:
        """Lock the budgets, then count, then pick in order what fits them."""
        wanted = {budget for candidate in candidates for budget in self._budgets_of(candidate)}
        held: set[Budget] = set()
        if wanted:
            kinds, tokens = zip(*sorted(wanted), strict=True)
            held = set(
                rows(
                    db,
                    "lock_budgets",
                    kinds=list(kinds),
                    tokens=list(tokens),
                    namespace=LOCK_NAMESPACE,
                )
            )
        rates = {quota for candidate in candidates for quota in self._own_quotas(candidate)}
        self._counts = counts = self._count(db, held, rates)
        picked: list[Candidate] = []
        self.contended = False
        for candidate in candidates:
            quotas = self._quotas(candidate, counts)
            if counts.room(quotas) > 0:
                counts.take(quotas)
                picked.append(candidate)
                if len(picked) == slots:
                    break
            else:
                # It seemed to fit a moment ago.
                self.contended = True
        self._pass_on(picked)
        return picked

    def _budgets_of(self, candidate: Candidate) -> set[Budget]:
        budgets = {quota[:2] for quota in self._own_quotas(candidate)}
        if candidate.queue_name in self._queues:
            budgets.add((LOCK_QUEUE, candidate.queue_name))
        return budgets

    def _own_quotas(self, candidate: Candidate) -> dict[Quota, int]:
        """Return what a job needs of its key, or of its type; no rate holds back what resumes."""
        quotas: dict[Quota, int] = {}
        rate = None if candidate.resumed else self._scope.rates.get(candidate.name)
        if candidate.key is not None:
            quotas[(LOCK_KEY, str(candidate.key), None)] = candidate.limit
            if rate is not None:
                quotas[(LOCK_KEY, str(candidate.key), rate.seconds)] = rate.limit
        elif rate is not None:
            quotas |= _type_quota(rate)
        return quotas

    def _quotas(self, candidate: Candidate, counts: Counts) -> dict[Quota, int]:
        quotas = self._own_quotas(candidate)
        if candidate.queue_name in self._queues:
            quotas |= counts.of_queue(candidate.queue_name, resumed=candidate.resumed)
        return quotas

    def _count(self, db: BaseDatabaseWrapper, budgets: set[Budget], quotas: set[Quota]) -> Counts:
        """Count what budgets hold, and what has started in the windows of these quotas."""
        if not budgets:
            return Counts((), ())
        rates = [quota for quota in quotas if quota[2] and quota[:2] in budgets]
        found = rows(
            db,
            "count_budgets",
            keys=[int(token) for kind, token in budgets if kind == LOCK_KEY],
            queues=[token for kind, token in budgets if kind == LOCK_QUEUE],
            kinds=[quota[0] for quota in rates],
            tokens=[quota[1] for quota in rates],
            seconds=[quota[2] for quota in rates],
            budgets=[log_name(quota[:2]) for quota in rates],
        )
        return Counts(budgets, found)

    def log(self, db: BaseDatabaseWrapper, started: Sequence[Candidate], moment: datetime) -> None:
        """Log what starts under rates, in the transaction that claims it."""
        starts: Counter[Budget] = Counter()
        windows: dict[Budget, int] = {}
        longest = max((rate.seconds for rate in self._scope.rates.values()), default=0)
        for candidate in started:
            for kind, token, seconds in self._quotas(candidate, self._counts):
                if seconds:
                    starts[(kind, token)] += 1
                    # Other job types may count what starts under the key in longer windows.
                    windows[(kind, token)] = longest if kind == LOCK_KEY else seconds
        if starts:
            rows(
                db,
                "log_starts",
                budgets=[log_name(budget) for budget in starts],
                starts=list(starts.values()),
                seconds=[max(windows[budget], KEEP_STARTS) for budget in starts],
                moment=moment,
            )

    def _pass_on(self, picked: Sequence[Candidate]) -> None:
        """Let the next claim begin after the last key that this one gave its turn."""
        for candidate in picked:
            if candidate.key is not None and candidate.rank == 0:
                self._turns[candidate.priority] = (candidate.key, HIGHEST)


class _Turn:
    """Pick of each key what is first, whatever its lane."""

    def __init__(self, budgets: Budgets, level: int, rooms: Rooms, blocked: dict[int, int]) -> None:
        self._budgets = budgets
        self._level = level
        self._rooms = rooms
        self._blocked = blocked
        self._ranks: Counter[int] = Counter()
        self._queued: Counter[tuple[str, bool]] = Counter()
        self.found: list[Candidate] = []

    def take(self, given: Iterable[KeyedRow]) -> None:
        """Judge all due jobs of some keys that the look has brought, key by key."""
        for _key, group in groupby(given, key=lambda row: row.key):
            for row in sorted(group, key=lambda row: (row.due_at, row.id)):
                self._judge(row)

    def _judge(self, row: KeyedRow) -> None:
        if row.is_paced:
            opens_in = row.opens_in or self._rooms.queue_opens_in(row.queue_name)
            self._budgets.opens_in = min(self._budgets.opens_in, opens_in)
            return
        if row.limit is None or row.room is None or self._ranks[row.key] >= row.room > 0:
            return
        if row.room <= 0:
            self._blocked[row.key] = max(self._blocked.get(row.key, 0), row.limit)
            return
        if row.limit <= self._blocked.get(row.key, 0):
            # The key has become free between two looks: who is before has not been asked.
            self._budgets.overtaking = True
            return
        place = (row.queue_name, row.resumed)
        room = self._rooms.of_queue(row.queue_name, resumed=row.resumed)
        if room is not None and self._queued[place] >= room:
            return
        self.found.append(row.as_candidate(self._level, self._ranks[row.key]))
        self._ranks[row.key] += 1
        self._queued[place] += 1


def find_openings(
    db: BaseDatabaseWrapper, rates: Mapping[tuple[str, int], int]
) -> dict[tuple[str, int], datetime]:
    """Tell of rates that are used up when the next start is possible.

    A rate is a budget, by its `log_name`, and a number of seconds, with how many may start.
    """
    found = rows(
        db,
        "find_openings",
        budgets=[budget for budget, _seconds in rates],
        seconds=[seconds for _budget, seconds in rates],
        limits=list(rates.values()),
    )
    return {(budget, seconds): opens_at for budget, seconds, opens_at in found}


def drop_starts(db: BaseDatabaseWrapper, limit: int) -> int:
    """Drop starts from the log that no window holds any more; return how many."""
    return len(rows(db, "drop_starts", limit=limit))
