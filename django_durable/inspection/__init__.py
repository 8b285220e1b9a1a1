"""What the rows tell people: why a job waits, what it went through, how much there is of all.

Nothing here writes. Each function costs a fixed number of queries, whatever the tables hold.
"""

from django_durable.inspection.blocking import blocked_on, blocked_on_many
from django_durable.inspection.counting import (
    QueueCounts,
    Summary,
    queue_counts,
    status_counts,
    summary,
)
from django_durable.inspection.health import missing_migrations, problems, undefined
from django_durable.inspection.history import Entry, timeline, with_errors
from django_durable.inspection.liveness import (
    WorkerState,
    is_alive,
    running_by_worker,
    with_liveness,
    worker_states,
)
from django_durable.inspection.naming import unknown_job_types, unknown_queues, unlasting_queues

__all__ = [
    "Entry",
    "QueueCounts",
    "Summary",
    "WorkerState",
    "blocked_on",
    "blocked_on_many",
    "is_alive",
    "missing_migrations",
    "problems",
    "queue_counts",
    "status_counts",
    "summary",
    "timeline",
    "undefined",
    "unknown_job_types",
    "unknown_queues",
    "unlasting_queues",
    "running_by_worker",
    "with_errors",
    "with_liveness",
    "worker_states",
]
