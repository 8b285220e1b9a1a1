"""Why a job does not run now, in a sentence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db.models import Count, OuterRef, Subquery

from django_durable import store
from django_durable.choices import FINISHED, JobStatus, StepKind, StepStatus
from django_durable.durations import parse_rate
from django_durable.inspection.history import ENDINGS, shown_moment
from django_durable.inspection.liveness import with_liveness
from django_durable.jobtypes import registry
from django_durable.models import Attempt, Job, Queue, Step, Worker
from django_durable.querysets import ClockNow
from django_durable.store.base import rows
from django_durable.store.budgets import find_openings
from django_durable.store.quotas import LOCK_KEY, LOCK_QUEUE, LOCK_TYPE, log_name

# So many awaited jobs of one waiter are counted, and so many names of job types are given.
MOST_AWAITED = 1000
MOST_NAMES = 3
FIELDS = (
    "name",
    "queue_name",
    "requires",
    "status",
    "attempt",
    "rejections",
    "due_at",
    "waits_for",
    "concurrency_key",
    "key_hash",
    "key_held",
    "resumed",
    "start_by",
    "started_at",
)


def blocked_on(job: Job) -> str:
    """Say why the job does not run now; see `blocked_on_many`."""
    return blocked_on_many([job])[job.pk]


def blocked_on_many(jobs: Iterable[Job]) -> dict[UUID, str]:
    """Say of each job, by its id, why it does not run now: "" if it runs or has ended.

    Judges the rows as the database holds them now, by its clock, in at most eight queries for any
    number of jobs. What an earlier obstacle hides is not said: a paused queue, no worker, a
    queue's limit, a concurrency key, rates and full slots, in this order.
    """
    jobs = list(jobs)
    answers = {job.pk: "" for job in jobs}
    found = _reread([job.pk for job in jobs if job.status not in FINISHED])
    waiting = [job for job in found if job.status == JobStatus.WAITING]
    parked = _awaited([job.pk for job in waiting])
    timed = _timed([job.pk for job in waiting if job.due_at])
    due = [job for job in found if job.due_at is not None and job.due_at <= job.now]
    obstacles = _Obstacles.standing_before(due) if due else _Obstacles()
    for job in found:
        if job.due_at is not None and job.due_at <= job.now:
            answers[job.pk] = obstacles.of(job)
        elif job.status == JobStatus.WAITING:
            answers[job.pk] = _parked(job, parked.get(job.pk), timed.get(job.pk, []))
        else:
            answers[job.pk] = _delayed(job)
        if job.start_by is not None and job.started_at is None:
            answers[job.pk] += f"; cancelled if not started by {shown_moment(job.start_by)}"
    return answers


def _reread(ids: list[UUID]) -> list[Any]:
    """Read the waiting ones anew: an instance in hand may be older than what happened since."""
    if not ids:
        return []
    latest = Attempt.objects.filter(job=OuterRef("pk"), number=OuterRef("attempt"))
    return list(
        Job.all_objects.filter(pk__in=ids, status__in=[JobStatus.READY, JobStatus.WAITING])
        .only(*FIELDS)
        .annotate(now=ClockNow(), outcome=Subquery(latest.values("outcome")))
    )


def _delayed(job: Any) -> str:
    until = shown_moment(job.due_at)
    if job.outcome is not None:
        return f"retrying at {until} after attempt {job.attempt} {ENDINGS[job.outcome]}"
    if job.rejections:
        times = "once" if job.rejections == 1 else f"{job.rejections} times"
        return f"rejected {times}, offered again at {until}"
    return f"scheduled until {until}"


def _awaited(ids: list[UUID]) -> dict[UUID, Counter[str]]:
    """Count what each parked job waits for, by job type."""
    awaited: dict[UUID, Counter[str]] = {}
    if ids:
        found = rows(store.connection(), "awaited", ids=ids, reach=MOST_AWAITED)
        for waiter, name, number in found:
            awaited.setdefault(waiter, Counter())[name] = number
    return awaited


def _timed(ids: list[UUID]) -> dict[UUID, list[Step]]:
    """Return the steps and sleeps of each parked job that wait for a moment, the next one first."""
    timed: dict[UUID, list[Step]] = {}
    if ids:
        kinds = (StepKind.STEP, StepKind.SLEEP)
        steps = Step.objects.filter(
            job__in=ids, kind__in=kinds, status=StepStatus.PENDING, wake_at__isnull=False
        )
        told = ("job_id", "kind", "name", "wake_at", "error_class")
        for step in steps.order_by("wake_at").only(*told):
            timed.setdefault(step.job_id, []).append(step)
    return timed


def _parked(job: Any, awaited: Counter[str] | None, timed: Sequence[Step]) -> str:
    """Say what a parked job waits for, and of `timed` what goes on meanwhile."""
    retried = next((step for step in timed if step.kind == StepKind.STEP), None)
    due = [step.kind for step in timed if step.wake_at == job.due_at]
    # Else it is what the timer is for.
    limit = None if due else job.due_at
    told = []
    if job.waits_for is not None or awaited is not None or limit is not None or not timed:
        told.append(_waiting(job, awaited, limit))
    if StepKind.SLEEP in due:
        told.append(f"sleeping until {shown_moment(job.due_at)}")
    if retried is not None and retried.wake_at is not None:
        retry = f"retrying step {retried.name!r} at {shown_moment(retried.wake_at)}"
        told.append(f"{retry} after {retried.error_class}")
    return "; ".join(told)


def _waiting(job: Any, awaited: Counter[str] | None, limit_at: datetime | None) -> str:
    if job.waits_for is not None:
        limit = f" until {shown_moment(limit_at)}" if limit_at else ""
        signal = f"waiting for signal {job.waits_for!r}{limit}"
        return signal if awaited is None else f"{signal}; {_waiting_for_jobs(awaited, None)}"
    if awaited is None:
        # Without a timer nothing but an event can wake it, and none is recorded.
        return f"sleeping until {shown_moment(limit_at)}" if limit_at else "waiting to be woken"
    return _waiting_for_jobs(awaited, limit_at)


def _waiting_for_jobs(awaited: Counter[str], limit_at: datetime | None) -> str:
    total = awaited.total()
    names = [
        name if number == 1 else f"{number} x {name}" for name, number in awaited.most_common()
    ]
    if len(names) > MOST_NAMES:
        names[MOST_NAMES:] = ["others"]
    jobs = "1 job" if total == 1 else f"{total} jobs"
    if total >= MOST_AWAITED:
        jobs = f"{total} jobs or more"
    limit = f", until {shown_moment(limit_at)} at the latest" if limit_at else ""
    return f"waiting for {jobs} ({', '.join(names)}){limit}"


@dataclass(frozen=True)
class _Obstacles:
    """Hold what may stand between due jobs and a worker."""

    workers: Sequence[Worker] = ()
    queues: dict[str, Queue] = field(default_factory=dict)
    running: dict[str, int] = field(default_factory=dict)
    holders: dict[int, list[Any]] = field(default_factory=dict)
    # When rates that are used up have room again.
    openings: dict[tuple[str, int], datetime] = field(default_factory=dict)

    @classmethod
    def standing_before(cls, jobs: list[Any]) -> _Obstacles:
        """Read what concerns these jobs, in five queries."""
        queues = Queue.objects.in_bulk({job.queue_name for job in jobs})
        limited = [queue.name for queue in queues.values() if queue.max_running is not None]
        busy = Job.all_objects.running().filter(due_at__isnull=True, queue_name__in=limited)
        keys = {job.key_hash for job in jobs if job.key_hash is not None}
        held = Job.all_objects.filter(key_held=True, key_hash__in=keys)
        holders: dict[int, list[Any]] = {}
        for holder in held.only("status", "key_hash").order_by("pk"):
            holders.setdefault(holder.key_hash, []).append(holder)
        return cls(
            list(with_liveness(Worker.objects.all()).filter(alive=True)),
            queues,
            dict(busy.values_list("queue_name").annotate(number=Count("pk"))),
            holders,
            _openings(jobs, queues),
        )

    def of(self, job: Any) -> str:
        """Return the first obstacle of the job."""
        queue = self.queues.get(job.queue_name)
        if queue is not None and queue.paused:
            return f"queue {queue.name!r} is paused"
        missing = lacking(self.workers, job.name, job.queue_name, job.requires)
        if missing:
            return f"no live worker serves it: {missing}"
        limit = queue.max_running if queue is not None else None
        running = self.running.get(job.queue_name, 0)
        if limit is not None and running >= limit:
            jobs = "1 running job" if limit == 1 else f"{limit} running jobs"
            return f"queue {job.queue_name!r} is at its limit of {jobs} ({running} run)"
        return self._key(job) or self._rate(job, queue) or "waiting for a free slot"

    def _key(self, job: Any) -> str:
        if job.key_held:
            # It was parked with the key in hand.
            return ""
        holders = self.holders.get(job.key_hash, [])
        job_type = registry.find(job.name)
        limit = job_type.options.concurrency_limit if job_type else 1
        if limit is None or len(holders) < limit:
            return ""
        first = holders[0]
        verb = "runs" if first.status == JobStatus.RUNNING else "keeps it while parked"
        if len(holders) > 1:
            who = f"job {first.pk} and {len(holders) - 1} more hold it"
        else:
            who = f"job {first.pk} {verb}"
        return f"held by concurrency key {job.concurrency_key!r} ({who})"

    def _rate(self, job: Any, queue: Queue | None) -> str:
        """Name the rate that is used up and has room again last."""
        used_up = [
            (self.openings[budget, seconds], whose)
            for budget, seconds, _limit, whose in _rates(job, queue)
            if (budget, seconds) in self.openings
        ]
        if not used_up:
            return ""
        opens_at, whose = max(used_up)
        return f"rate limited: {whose}, the next start is possible at {shown_moment(opens_at)}"


def lacking(workers: Sequence[Worker], name: str, queue_name: str, requires: str | None) -> str:
    """Say what living workers lack to run such jobs, "" if one of them may take them."""
    if not workers:
        return "none is running"
    workers = [worker for worker in workers if not worker.draining]
    if not workers:
        return "all are draining"
    workers = [worker for worker in workers if name in worker.job_names]
    if not workers:
        return f"nobody knows the job type {name!r}"
    workers = [worker for worker in workers if _serves(worker, queue_name)]
    if not workers:
        return f"nobody who knows the job type serves queue {queue_name!r}"
    if requires is None or any(requires in worker.capabilities for worker in workers):
        return ""
    return f"nobody who serves its queue and job type has capability {requires!r}"


def _rates(job: Any, queue: Queue | None) -> list[tuple[str, int, int, str]]:
    """Return the rates that the start of a job needs: budget, seconds, limit, and whose it is."""
    if job.resumed:
        return []
    found = []
    job_type = registry.find(job.name)
    rate = job_type.options.rate_limit if job_type else None
    if job_type is not None and rate is not None:
        keyed = job.key_hash is not None
        budget = (LOCK_KEY, str(job.key_hash)) if keyed else (LOCK_TYPE, job_type.name)
        whose = f"key {job.concurrency_key!r}" if keyed else f"job type {job_type.name!r}"
        found.append((budget, rate, f"{whose} has used up {rate}"))
    if queue is not None and queue.rate_limit is not None:
        whose = f"queue {queue.name!r} has used up {queue.rate_limit}"
        found.append(((LOCK_QUEUE, queue.name), queue.rate_limit, whose))
    return [
        (log_name(budget), round(window.total_seconds()), limit, whose)
        for budget, text, whose in found
        for limit, window in [parse_rate(text)]
    ]


def _openings(jobs: list[Any], queues: dict[str, Queue]) -> dict[tuple[str, int], datetime]:
    rates = {
        (budget, seconds): limit
        for job in jobs
        for budget, seconds, limit, _whose in _rates(job, queues.get(job.queue_name))
    }
    return find_openings(store.connection(), rates) if rates else {}


def _serves(worker: Worker, queue_name: str) -> bool:
    everything = not worker.queues or "*" in worker.queues
    return (everything or queue_name in worker.queues) and (
        queue_name not in worker.excluded_queues
    )
