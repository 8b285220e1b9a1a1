"""Budgets, what they allow, and what was counted of them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

LOCK_KEY = 1
LOCK_QUEUE = 2
LOCK_TYPE = 4
NO_LIMIT = 2**31 - 1
KINDS = {LOCK_KEY: "key", LOCK_QUEUE: "queue", LOCK_TYPE: "type"}

# What is locked: a kind and the hash of a key, the name of a queue or that of a job type.
Budget = tuple[int, str]
# What is counted of a budget: how many run (None), or how many have started in so many seconds.
Quota = tuple[int, str, int | None]


def log_name(budget: Budget) -> str:
    """Return what the log of starts calls a budget."""
    return f"{KINDS[budget[0]]}:{budget[1]}"


class Counts:
    """Hold what was counted of budgets, and what a claim adds to it.

    What has not been counted is full: another claim decides over it at this moment.
    """

    def __init__(self, counted: Iterable[Budget], found: Iterable[tuple[Any, ...]]) -> None:
        self._counted = set(counted)
        self._used: Counter[Quota] = Counter()
        # Of queues, whose limits are read with what they hold.
        self._limits: dict[str, dict[Quota, int]] = {}
        self._opens: dict[Quota, float] = {}
        for kind, token, seconds, most, used, opens_in in found:
            quota = (kind, token, seconds)
            self._used[quota] = used
            if most is not None:
                self._limits.setdefault(token, {})[quota] = most
            if opens_in is not None:
                self._opens[quota] = opens_in

    def of_queue(self, name: str, *, resumed: bool) -> Mapping[Quota, int]:
        """Return the quotas of a queue that a job in it needs; no rate holds back what resumes."""
        if (LOCK_QUEUE, name) not in self._counted:
            return {(LOCK_QUEUE, name, None): 0}
        limits = self._limits.get(name, {})
        return {quota: limits[quota] for quota in limits if not (resumed and quota[2])}

    def room(self, quotas: Mapping[Quota, int]) -> int:
        """Return how many more jobs the quotas allow."""
        rooms = [
            limit - self._used[quota] if quota[:2] in self._counted else 0
            for quota, limit in quotas.items()
        ]
        return max(min(rooms, default=NO_LIMIT), 0)

    def opens_in(self, quotas: Mapping[Quota, int]) -> float:
        """Return after how many seconds the rates among the quotas may have room, never: inf."""
        full = [quota for quota, limit in quotas.items() if self._used[quota] >= limit]
        if any(quota[2] is None for quota in full):
            return math.inf
        return max((self._opens.get(quota, 0.0) for quota in full), default=math.inf)

    def take(self, quotas: Mapping[Quota, int]) -> None:
        """Count one more job; its start counts in each window of its budgets."""
        starting = {quota[:2] for quota in quotas if quota[2]}
        for quota in {*quotas, *(other for other in self._used if other[:2] in starting)}:
            if quota in quotas or quota[2]:
                self._used[quota] += 1
