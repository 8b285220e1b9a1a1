"""Drive workflows in the test's own thread, a run at a time, through the real store."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.db import connection

from django_durable import Backoff, JobContext, execution, store
from django_durable.jobtypes import JobType, registry
from django_durable.models import Job
from django_durable.operations import current_keep
from django_durable.store import Claim
from tests.contract.running import Runner

AT_ONCE = Backoff(initial=timedelta(0), jitter=0.0)
HOUR = timedelta(hours=1)


class FlakyError(Exception):
    """Pass by itself."""


def go(*job_types: JobType, most: int = 100) -> list[Job]:
    """Run what is due until nothing is; return the jobs in the order of their runs."""
    ran: list[Job] = []
    for _ in range(most):
        now = Runner(*job_types).run()
        if not now:
            return ran
        ran += now
    raise AssertionError(f"there is still work after {most} rounds")


def go_one(*job_types: JobType) -> list[Job]:
    """Run what is due, once."""
    return Runner(*job_types).run()


def fresh(job: Job) -> Job:
    """Return the job as it is now."""
    return Job.all_objects.get(pk=job.pk)


def value_of(job: Job) -> Any:
    """Return what the job has returned."""
    job = fresh(job)
    assert job.status == "SUCCESSFUL", (job.status, job.dead_letter and job.dead_letter.message)
    return job.return_value


def checkpoints(job: Job) -> list[tuple[str, str, str]]:
    """Return kind, name and status of all checkpoints in their order."""
    return list(job.steps.order_by("ordinal", "pk").values_list("kind", "name", "status"))


def context_of(claim: Claim) -> JobContext:
    """Return a context for a claim, to call verbs on without a function."""
    job_type = registry.get(claim.name)
    return JobContext(claim, job_type, execution.timeout_of(claim.options, job_type))


def steal(job_id: Any) -> None:
    """Let another claim have taken the job."""
    with connection.cursor() as cursor:
        cursor.execute("UPDATE durable_job SET epoch = epoch + 1 WHERE id = %s", [job_id])


def lose(job: Job) -> None:
    """Let the worker of a running job die."""
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE durable_job SET lease_until = '2020-01-01'"
            " WHERE id = %s AND status = 'RUNNING'",
            [job.pk],
        )
    store.rescue(connection, current_keep())
