"""A small model of the kernel: what each verb makes of the jobs, with no regard to how."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db import connection

from django_durable.choices import OnDuplicate

LIVE = {"READY", "RUNNING", "WAITING"}
FAILED = {"DEAD", "CANCELLED"}


@dataclass(frozen=True)
class Between:
    """Stand for a value that the database chooses within bounds."""

    low: Any
    high: Any


@dataclass
class Job:
    """Hold what the model says of a job, and what the table says."""

    name: str
    queue: str
    priority: int
    status: Any = "READY"
    attempt: int = 0
    maximum: int | None = 3
    epoch: Any = 0
    run_after: Any = None
    due: Any = None
    lease: Any = None
    claimer: UUID | None = None
    resumed: bool = False
    requested: bool = False
    rejections: int = 0
    key: str | None = None
    concurrency_key: str | None = None
    holds_key: bool = False
    parent: UUID | None = None
    root: UUID | None = None
    awaits: frozenset[UUID] = frozenset()
    outcomes: tuple[str, ...] = ()
    letters: int = 0
    replayed: bool = False
    within: float | None = None
    start_by: Any = None
    started: bool = False

    @property
    def is_live(self) -> bool:
        return self.status in LIVE

    def is_claimable(self, now: datetime) -> bool:
        is_due = self.status in ("READY", "WAITING") and self.due is not None and self.due <= now
        return is_due and not self.is_late(now)

    def is_late(self, now: datetime) -> bool:
        is_waiting = self.status == "READY" and not self.started
        return is_waiting and self.start_by is not None and self.start_by <= now


ROWS = """
SELECT
    j.id, j.name, j.queue_name, j.priority, j.status, j.attempt, j.max_attempts, j.epoch,
    j.run_after, j.due_at, j.lease_until, j.claimer, j.resumed, j.cancel_requested_at IS NOT NULL,
    j.rejections, j.idempotency_key, j.concurrency_key, j.key_held, j.parent_id, j.root_id,
    ARRAY(SELECT awaited_id FROM durable_await WHERE waiter_id = j.id),
    ARRAY(SELECT outcome FROM durable_attempt WHERE job_id = j.id ORDER BY number),
    (SELECT count(*)::int FROM durable_deadletter WHERE job_id = j.id),
    EXISTS (SELECT FROM durable_deadletter WHERE job_id = j.id AND replayed_at IS NOT NULL),
    (j.options ->> 'start_within')::float8, j.start_by, j.started_at IS NOT NULL
FROM durable_job AS j
"""


def read() -> dict[UUID, Job]:
    """Read all jobs from the tables."""
    with connection.cursor() as cursor:
        cursor.execute(ROWS)
        found = {}
        for job_id, *values in cursor.fetchall():
            job = Job(*values)
            job.awaits, job.outcomes = frozenset(job.awaits), tuple(job.outcomes)
            found[job_id] = job
    return found


def differences(expected: dict[UUID, Job], actual: dict[UUID, Job]) -> list[str]:
    """Name what differs, None where the model leaves the choice to the database."""
    wrong = [f"{job_id} should not be there" for job_id in actual.keys() - expected.keys()]
    wrong += [f"{job_id} is not there" for job_id in expected.keys() - actual.keys()]
    for job_id in expected.keys() & actual.keys():
        for column in fields(Job):
            want = getattr(expected[job_id], column.name)
            have = getattr(actual[job_id], column.name)
            if isinstance(want, Between):
                agrees = have is not None and want.low <= have <= want.high
            else:
                agrees = want == have
            if not agrees:
                wrong.append(f"{job_id}: {column.name} is {have}, not {want}")
    return wrong


@dataclass
class Moment:
    """Hold the database's clock before and after a verb, with the offset."""

    low: datetime
    high: datetime

    def plus(self, delay: timedelta) -> Between:
        return Between(self.low + delay, self.high + delay)


@dataclass
class Kernel:
    """Hold the jobs; each method is a verb that has been committed."""

    jobs: dict[UUID, Job] = field(default_factory=dict)

    def copy(self) -> Kernel:
        return deepcopy(self)

    def living(self, right: tuple[UUID, int]) -> Job | None:
        """Return the job of a claim that stands."""
        job = self.jobs[right[0]]
        return job if job.status == "RUNNING" and job.epoch == right[1] else None

    def end(self, job_id: UUID, status: str) -> None:
        job = self.jobs[job_id]
        job.status, job.due, job.awaits = status, None, frozenset()
        self._leave(job)
        job.resumed = False
        for waiter in self.jobs.values():
            if job_id in waiter.awaits:
                waiter.awaits -= {job_id}
                if waiter.status == "WAITING" and not waiter.awaits:
                    waiter.status, waiter.due = "READY", waiter.run_after

    def _leave(self, job: Job) -> None:
        job.lease = job.claimer = None
        job.holds_key = False

    def _back(self, job: Job, due: Any) -> None:
        job.status, job.run_after, job.due = "READY", due, due
        self._leave(job)

    def claim(self, job_id: UUID, claimer: UUID, lease: Between) -> None:
        job = self.jobs[job_id]
        job.status, job.due, job.awaits = "RUNNING", None, frozenset()
        job.epoch = Between(job.epoch + 1, 2**63)
        job.attempt += 0 if job.resumed else 1
        job.lease, job.claimer, job.started = lease, claimer, True
        job.holds_key = job.concurrency_key is not None

    def succeed(self, right: tuple[UUID, int]) -> bool:
        if self.living(right) is None:
            return False
        self.end(right[0], "SUCCESSFUL")
        return True

    def fail(
        self, right: tuple[UUID, int], due: Any, *, retryable: bool, cancel: bool, outcome: str
    ) -> bool:
        job = self.living(right)
        if job is None:
            return False
        cancelled = job.requested or cancel
        is_failure = outcome == "failed"
        job.outcomes += ("cancelled" if cancelled and is_failure else outcome,)
        if cancelled:
            self.end(right[0], "CANCELLED")
        elif not retryable or (job.maximum is not None and job.attempt >= job.maximum):
            job.letters = 1
            self.end(right[0], "DEAD")
        else:
            self._back(job, due)
            job.resumed = False
        return True

    def rescue(self, job_id: UUID) -> None:
        job = self.jobs[job_id]
        right = (job_id, job.epoch)
        self.fail(right, job.run_after, retryable=True, cancel=False, outcome="lost")

    def release(self, right: tuple[UUID, int], delay: Any, *, rejected: bool) -> bool:
        job = self.living(right)
        if job is None:
            return False
        job.attempt -= 0 if job.resumed else 1
        job.rejections += rejected
        if job.requested:
            self.end(right[0], "CANCELLED")
        else:
            job.started = job.resumed or job.attempt > 0
            self._back(job, job.run_after if delay is None else delay)
        return True

    def cancel_late(self, now: datetime) -> int:
        late = [job_id for job_id, job in self.jobs.items() if job.is_late(now)]
        for job_id in late:
            self.end(job_id, "CANCELLED")
        return len(late)

    def park(
        self, right: tuple[UUID, int], awaited: list[UUID], wake_at: Any, *, hold_key: bool
    ) -> str:
        alive = frozenset(job_id for job_id in awaited if self.jobs[job_id].is_live)
        if awaited and not alive:
            return "READY"
        job = self.living(right)
        if job is None or job.requested:
            return "REFUSED"
        job.status, job.due, job.resumed, job.awaits = "WAITING", wake_at, True, alive
        job.lease = job.claimer = None
        job.holds_key = job.holds_key and hold_key
        return "PARKED"

    def tree(self, job_id: UUID) -> set[UUID]:
        found = {job_id}
        while more := {i for i, job in self.jobs.items() if job.parent in found} - found:
            found |= more
        return found

    def cancel(self, job_id: UUID, *, tree: bool) -> None:
        for member in self.tree(job_id) if tree else {job_id}:
            job = self.jobs[member]
            if job.is_live:
                job.requested = True
                if job.status != "RUNNING":
                    self.end(member, "CANCELLED")

    def run_now(self, job_id: UUID, moment: Moment) -> None:
        job = self.jobs[job_id]
        if job.status == "READY" and job.due > moment.high:
            job.run_after = job.due = moment.plus(timedelta(0))

    def replay(self, dead: UUID, new: UUID, moment: Moment) -> None:
        old = self.jobs[dead]
        now = moment.plus(timedelta(0))
        made = Job(old.name, old.queue, old.priority, maximum=old.maximum, root=new)
        made.run_after = made.due = now
        made.within = old.within
        if old.within is not None:
            made.start_by = moment.plus(timedelta(seconds=old.within))
        made.concurrency_key, made.key, old.key = old.concurrency_key, old.key, None
        old.replayed = True
        self.jobs[new] = made

    def enqueue(self, new: UUID, job: Job, mode: OnDuplicate) -> str:
        """Return "made", "refused", or what became of the job that holds the key."""
        holder = next(
            (i for i, other in self.jobs.items()
             if job.key is not None and (other.name, other.key) == (job.name, job.key)),
            None,
        )  # fmt: skip
        if holder is not None:
            old = self.jobs[holder]
            if mode is OnDuplicate.RETURN_EXISTING:
                return "returned"
            if mode is OnDuplicate.RETURN_LIVE and old.is_live:
                return "returned"
            if mode is OnDuplicate.NO_REUSE:
                return "refused"
            if mode is OnDuplicate.ALLOW_REUSE_ON_FAILURE and old.status not in FAILED:
                return "refused"
            if mode is OnDuplicate.REPLACE and self._replace(old, job):
                return "replaced"
            old.key = None
        job.root = new
        self.jobs[new] = job
        return "made"

    def _replace(self, old: Job, job: Job) -> bool:
        if old.status != "READY" or old.attempt or old.resumed:
            return False
        for name in (
            *("queue", "priority", "maximum", "concurrency_key", "run_after", "due"),
            *("within", "start_by"),
        ):
            setattr(old, name, getattr(job, name))
        return True
