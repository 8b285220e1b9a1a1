"""Workers as they stand now, by the database's clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.db.models import Count, DurationField, ExpressionWrapper, F, Q, QuerySet, Value
from django.db.models.fields import BooleanField
from django.db.models.functions import Coalesce

from django_durable.conf import conf
from django_durable.models import Job, Worker
from django_durable.querysets import ClockNow


@dataclass(frozen=True)
class WorkerState:
    """Hold a worker's row, whether it lives, and how many jobs it runs."""

    worker: Worker
    alive: bool
    running: int

    @property
    def state(self) -> str:
        """Return "running", "draining" (claims nothing more) or "dead"."""
        if not self.alive:
            return "dead"
        return "draining" if self.worker.draining else "running"


def with_liveness(workers: QuerySet[Worker]) -> QuerySet[Any]:
    """Annotate each worker with `alive`: it has been heard of within twice its lease."""
    lease = Coalesce(F("lease"), Value(conf.lease, output_field=DurationField()))
    return workers.annotate(
        alive=ExpressionWrapper(
            Q(heartbeat_at__gt=ClockNow() - lease - lease), output_field=BooleanField()
        )
    )


def is_alive(worker: Worker) -> bool:
    """Tell whether the worker has been heard of within twice its lease.

    Costs a query, unless the worker comes from `with_liveness`. A row that is gone is not alive.
    """
    known: bool | None = getattr(worker, "alive", None)
    if known is not None:
        return known
    found = with_liveness(Worker.objects.filter(pk=worker.pk)).filter(alive=True)
    return found.exists()


def running_by_worker() -> dict[str, int]:
    """Return how many jobs run under each worker's name, by one query over what runs.

    By name, since each child of a worker claims under an id of its own.
    """
    running = Job.all_objects.running().filter(due_at__isnull=True)
    return dict(running.values_list("worker").annotate(number=Count("pk")))


def worker_states() -> list[WorkerState]:
    """Return all workers, the living first, with the number of jobs that each runs."""
    running = running_by_worker()
    states = []
    for worker in with_liveness(Worker.objects.all()).order_by("-alive", "name", "-heartbeat_at"):
        # Of those that share a name the newest, which comes first, has as many as it can.
        own = min(running.get(worker.name, 0), worker.slots)
        running[worker.name] = running.get(worker.name, 0) - own
        states.append(WorkerState(worker, is_alive(worker), own))
    return states
