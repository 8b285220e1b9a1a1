"""What a worker is asked to do, in a form that passes to its children."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

from django.conf import settings

from django_durable.durations import parse_rate
from django_durable.jobtypes import registry
from django_durable.store import Scope, TypeRate

# Where a child leaves its options for the processes of isolated runs.
OPTIONS_VARIABLE = "DURABLE_WORKER_OPTIONS"
PATH_VARIABLE = "DURABLE_WORKER_PATH"


@dataclass(frozen=True)
class WorkerOptions:
    """Hold the flags of `manage.py worker`; durations in seconds."""

    name: str
    queues: tuple[str, ...] = ()
    excluded_queues: tuple[str, ...] = ()
    job_names: tuple[str, ...] = ()
    capabilities: tuple[str, ...] = ()
    processes: int = 1
    concurrency: int = 10
    poll_interval: float = 1.0
    lease: float = 30.0
    shutdown_timeout: float = 30.0
    stall_timeout: float = 900.0
    database_timeout: float = 60.0
    max_jobs: int | None = None
    max_seconds: float | None = None
    max_rss: float | None = None
    batch: bool = False
    reload: bool = False
    database: str | None = None
    maintenance: bool = True
    verbosity: int = 1
    log_format: str = "text"

    @property
    def lease_duration(self) -> timedelta:
        """Return the lease as a timedelta."""
        return timedelta(seconds=self.lease)

    def scope(self) -> Scope:
        """Return which lanes a child of this worker may serve, by the job types it knows."""
        names = self.served_names()
        limits = {name: registry.get(name).options.concurrency_limit for name in names}
        return Scope(
            names=frozenset(names),
            queues=frozenset(self.queues) if self.queues else None,
            excluded_queues=frozenset(self.excluded_queues),
            capabilities=frozenset(self.capabilities),
            limits=limits,
            rates=type_rates(),
        )

    def served_names(self) -> list[str]:
        """Return the names of the job types that the worker runs, aliases included."""
        if not self.job_names:
            return registry.names()
        served: set[str] = set()
        for name in self.job_names:
            job_type = registry.get(name)
            served.update((job_type.name, *job_type.aliases))
        return sorted(served)

    def apply_to_settings(self) -> None:
        """Let `--database` hold in this process, which is the worker's own."""
        if self.database is not None:
            settings.DURABLE_DATABASE = self.database

    def to_json(self) -> str:
        """Return the options as text for a child."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> WorkerOptions:
        """Read what `to_json` wrote."""
        read: dict[str, Any] = json.loads(text)
        for name, value in read.items():
            if isinstance(value, list):
                read[name] = tuple(value)
        return cls(**read)


def type_rates() -> dict[str, TypeRate]:
    """Return the rates of all job types: those that this worker leaves to others share keys."""
    rates: dict[str, TypeRate] = {}
    for name in registry.names():
        job_type = registry.get(name)
        if job_type.options.rate_limit is not None:
            limit, window = parse_rate(job_type.options.rate_limit)
            rates[name] = TypeRate(job_type.name, limit, round(window.total_seconds()))
    return rates
