"""Jobs that were lost with their child more than once: they run one at a time from then on.

One of them may be what ends the child. Beside it all others would lose one attempt after the other,
until they have none left.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from uuid import UUID

from django.db.models import BooleanField, ExpressionWrapper, Q

from django_durable.models import Job
from django_durable.querysets import ClockNow
from django_durable.store import Right

# How many jobs a worker remembers; the rest are as if they had been lost once.
MOST = 1000
# How many claims are left to those with a key alone.
FIRST = 3
# How soon to look again while some of them wait for each other.
AGAIN = 0.25


class Losses:
    """Know, for a worker, which jobs were lost with a child, and which of them more than once."""

    def __init__(self) -> None:
        # With which of its claimers each was lost last.
        self._lost: dict[UUID, UUID] = {}
        self.suspects: dict[UUID, None] = {}

    def add(self, claimer: UUID, jobs: Iterable[UUID]) -> list[UUID]:
        """Note what a dead child holds, any number of times; return what is suspect from now on."""
        held = list(jobs)
        new = [
            job
            for job in held
            if self._lost.get(job, claimer) != claimer and job not in self.suspects
        ]
        if len(held) < 2:
            # Nobody else was there.
            new = []
        self._lost.update(dict.fromkeys(held, claimer))
        self.suspects.update(dict.fromkeys(new))
        for known in (self._lost, self.suspects):
            while len(known) > MOST:
                del known[next(iter(known))]
        return new


class Suspects:
    """Hold a child's claims of suspects back, but for one at a time.

    Not of those with a concurrency key: what comes after one under its key would overtake it. They
    go first, and the others wait for their ends.
    """

    def __init__(self) -> None:
        self._jobs: dict[UUID, None] = {}
        # What the main thread has heard of since.
        self._new: deque[UUID] = deque()
        self._turn = 0
        self._first = 0
        self._due: list[UUID] = []
        # How many of the due ones were chosen since the last claim of anything.
        self._tried = 0

    def add(self, jobs: Iterable[UUID]) -> None:
        """Take more of them; any thread may."""
        self._new.extend(jobs)

    def held_back(self, running: Callable[[], list[Right]]) -> list[UUID]:
        """Return what not to claim now: all but one that is due, or all while one of them runs."""
        while self._new:
            self._jobs[self._new.popleft()] = None
            self._first = FIRST
        if not self._jobs:
            return []
        due = Q(status__in=["READY", "WAITING"], due_at__lte=ClockNow())
        found = (
            Job.all_objects.filter(pk__in=self._jobs, finished_at__isnull=True)
            .annotate(is_due=ExpressionWrapper(due, BooleanField()))
            .order_by("due_at", "pk")
            .values_list("pk", "concurrency_key", "is_due")
        )
        keys = {job: key for job, key, _is_due in found}
        ready = [job for job, _key, is_due in found if is_due]
        self._jobs = {job: None for job in self._jobs if job in keys}
        free = [job for job in self._jobs if keys[job] is None]
        self._due = [job for job in ready if keys[job] is None]
        if any(job in self._jobs for job, _epoch in running()):
            self._tried = 0
            return free
        if len(self._due) < len(ready) and self._first > 0:
            self._first -= 1
            return free
        if not self._due:
            return free
        # Another one each time: who can't be claimed must not keep the others waiting.
        self._turn += 1
        self._tried += 1
        chosen = self._due[self._turn % len(self._due)]
        return [job for job in free if job != chosen]

    def claimed(self) -> None:
        """Take note that something was claimed: what could not be before may be by now."""
        self._tried = 0

    @property
    def are_waiting(self) -> bool:
        """Tell whether some are due that have not had their turn."""
        return bool(self._jobs) and self._tried < len(self._due)
