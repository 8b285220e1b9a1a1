"""How much there is: jobs by status and queue, workers and their slots."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from django.db.models import Count

from django_durable import store
from django_durable.choices import JobStatus
from django_durable.inspection.liveness import WorkerState, worker_states
from django_durable.jobtypes import registry
from django_durable.models import Job, Queue
from django_durable.store.base import rows


@dataclass(frozen=True)
class QueueCounts:
    """Hold what lies in one queue.

    `ready` are all READY jobs, `due` those of them that could start now; `oldest_ready_seconds` is
    how long the first of these has been able to, None without one. `waiting` are parked jobs with
    a wake-up. `capped` says that a count has stopped at the limit, `has_row` that somebody
    has decided something about the queue.
    """

    name: str
    ready: int = 0
    due: int = 0
    running: int = 0
    waiting: int = 0
    oldest_ready_seconds: float | None = None
    paused: bool = False
    max_running: int | None = None
    rate_limit: str | None = None
    has_row: bool = False
    capped: bool = False


@dataclass(frozen=True)
class Summary:
    """Hold the state of everything, as of one moment or nearly so."""

    jobs: Mapping[str, int]
    queues: list[QueueCounts]
    workers: list[WorkerState] = field(default_factory=list)

    @property
    def slots_used(self) -> int:
        """Return how many slots hold a run, those of a worker that has just died included.

        A job is RUNNING until its end is recorded, but leaves its slot as soon as it has returned.
        """
        return min(self.jobs[JobStatus.RUNNING], sum(state.worker.slots for state in self.workers))

    @property
    def slots_total(self) -> int:
        """Return how many jobs the living workers can run at once."""
        return sum(state.worker.slots for state in self.workers if state.alive)


def queue_counts(limit: int | None = None) -> list[QueueCounts]:
    """Count the unfinished jobs of each queue.

    Queues are those that hold such jobs, have a row, or belong to a job type of this process.
    With `limit`, no more than so many rows are counted of each lane (jobs of one type, priority
    and requirement), which bounds the cost for a page; None counts all.
    """
    counts = {name: QueueCounts(name) for name in declared_queues()}
    db = store.connection()
    # For all of them one walk through the table is quicker than the walks lane by lane.
    found = (
        rows(db, "count_all_waiting") if limit is None else rows(db, "count_waiting", reach=limit)
    )
    for name, ready, due, waiting, oldest, capped in found:
        counts[name] = QueueCounts(name, ready, due, 0, waiting, oldest, capped=capped)
    running = Job.all_objects.running().filter(due_at__isnull=True)
    for name, number in running.values_list("queue_name").annotate(number=Count("pk")):
        counts[name] = replace(counts.get(name, QueueCounts(name)), running=number)
    for queue in Queue.objects.all():
        counts[queue.name] = replace(
            counts.get(queue.name, QueueCounts(queue.name)),
            paused=queue.paused,
            max_running=queue.max_running,
            rate_limit=queue.rate_limit,
            has_row=True,
        )
    return [counts[name] for name in sorted(counts)]


def declared_queues() -> set[str]:
    """Return the queues of the job types that this process knows."""
    return {registry.get(name).options.queue_name for name in registry.names()}


def status_counts(limit: int | None = None) -> dict[str, int]:
    """Count the kept jobs by status; see `queue_counts` for `limit`."""
    return _by_status(queue_counts(limit), limit)


def _by_status(queues: list[QueueCounts], limit: int | None) -> dict[str, int]:
    resting = [status.value for status in JobStatus if status is not JobStatus.READY]
    counted = dict(rows(store.connection(), "count_statuses", statuses=resting, reach=limit))
    counted[JobStatus.READY.value] = sum(queue.ready for queue in queues)
    counted[JobStatus.WAITING.value] += sum(queue.waiting for queue in queues)
    return {status.value: counted[status.value] for status in JobStatus}


def summary(limit: int | None = None) -> Summary:
    """Count jobs, queues, workers and slots; see `queue_counts` for `limit`."""
    queues = queue_counts(limit)
    return Summary(_by_status(queues, limit), queues, worker_states())
