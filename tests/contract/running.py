"""Run jobs as a worker does, in the test's own thread and on its own connection.

Everything is the real part: the claim of the store, the run of `execution`, the record of the
store. Only the processes and threads around them are left out, so that a test sees each move. The
tests of what needs them start a worker of their own (see `processes.py`).
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import uuid4

from asgiref.sync import async_to_sync
from django.db import connection

from django_durable import execution, operations, store
from django_durable.context import JobContext
from django_durable.jobtypes import JobType, registry
from django_durable.models import Job
from django_durable.outcomes import Abandoned, Outcome, ParkedRun, Rejected
from django_durable.store import Claim, Claims, Failure, Owner, Scope, Success
from django_durable.worker.options import type_rates

LEASE = timedelta(seconds=30)


class Runner:
    """Be a worker that claims, runs and records when it is told, one job after the other."""

    def __init__(
        self, *job_types: JobType, worker: str = "runner", lease: timedelta = LEASE, **scope: Any
    ) -> None:
        names = {name for kind in job_types for name in (kind.name, *kind.aliases)}
        limits = {name: registry.get(name).options.concurrency_limit for name in names}
        self.claims = Claims(
            Scope(frozenset(names), limits=limits, rates=type_rates(), **scope),
            Owner(worker, uuid4(), lease),
        )

    def claim(self, slots: int = 1000) -> list[Claim]:
        """Claim what is due."""
        self.claims.look(connection)
        return self.claims.claim(connection, slots)

    def take(self) -> Claim:
        """Claim the one job that is due."""
        (claim,) = self.claim()
        return claim

    def execute(self, claim: Claim) -> Outcome:
        """Run a claimed job and return what it came to, unrecorded."""
        job_type = registry.get(claim.name)
        context = JobContext(claim, job_type, execution.timeout_of(claim.options, job_type))
        if context.is_async:
            outcome: Outcome = async_to_sync(execution.aexecute)(context)
            return outcome
        return execution.execute(context)

    def record(self, outcome: Outcome) -> bool:
        """Record an outcome; return whether the claim still stood."""
        keep = operations.current_keep()
        if isinstance(outcome, Success):
            return bool(store.record_successes(connection, [outcome]).succeeded)
        if isinstance(outcome, Failure):
            return bool(store.record_failure(connection, outcome, keep).failed)
        if isinstance(outcome, Rejected):
            return bool(
                store.release(
                    connection, [outcome.right], keep=keep, delay=outcome.delay, rejected=True
                )
            )
        assert isinstance(outcome, Abandoned | ParkedRun)
        return isinstance(outcome, ParkedRun)

    def run(self, slots: int = 1000) -> list[Job]:
        """Claim what is due, run it and record it; return the jobs as they stand then."""
        claims = self.claim(slots)
        for claim in claims:
            self.record(self.execute(claim))
        return [Job.all_objects.get(pk=claim.id) for claim in claims]

    def give_back(self, claim: Claim) -> None:
        """Give a claim back as a worker does that is stopped."""
        released = store.release(
            connection, [(claim.id, claim.epoch)], keep=operations.current_keep()
        )
        assert released


def run(job: Job) -> Job:
    """Run the one job that is due, which is this one, and return it as it stands then."""
    (ran,) = Runner(registry.get(job.name)).run()
    assert ran.pk == job.pk
    return ran


def run_to_the_end(job: Job, most: int = 10) -> Job:
    """Run a job again and again, its delays cut short, until it has ended."""
    for _ in range(most):
        job = run(job)
        if job.is_finished:
            return job
        job.run_now()
    raise AssertionError(f"{job} has not ended after {most} runs")
