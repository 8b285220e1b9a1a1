"""Fixtures: a clock to set, job types that are forgotten, and a look as workers do it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection

from django_durable import firing, job
from django_durable.jobtypes import JobType, registry
from django_durable.models import Job, Schedule

At = Callable[..., None]


@pytest.fixture(autouse=True)
def _forget_job_types() -> Iterator[None]:
    """Forget the job types that a test has defined, so that another may use their names."""
    before = set(registry.names())
    yield
    for name in registry.names():
        kind: JobType | None = registry.find(name)
        if kind is not None and name not in before:
            registry.remove(kind)


@pytest.fixture
def at(db: None) -> Iterator[At]:
    """Set the one clock of this test's connection; it goes on from there."""

    def set_clock(*moment: int, zone: object = UTC) -> None:
        wanted = datetime(*moment, tzinfo=zone)  # type: ignore[misc, arg-type]
        connection.durable_clock_offset = wanted - datetime.now(UTC)

    yield set_clock
    connection.durable_clock_offset = timedelta(0)


@pytest.fixture
def work() -> JobType:
    """A job type to schedule."""

    @job(name="scheduled.work")
    def work(tenant: int = 0) -> None:
        """Do nothing."""

    return work


def look(*names: str) -> int:
    """Fire all that is due, as a worker does that knows these job types; return how many jobs."""
    before = Job.all_objects.count()
    while firing.run_due(names or registry.names()) == 0:
        pass
    return Job.all_objects.count() - before


def nominal(row: Schedule) -> Sequence[str]:
    """Return the nominal times of a schedule's jobs, in order, as short texts in UTC."""
    times = row.jobs.order_by("scheduled_for").values_list("scheduled_for", flat=True)
    return [f"{time.astimezone(UTC):%d %H:%M:%S}" for time in times]


def end_jobs() -> None:
    """Let all jobs have ended."""
    Job.all_objects.update(status="SUCCESSFUL", finished_at="2026-01-01T00:00Z", due_at=None)
