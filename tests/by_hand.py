"""Claim and end jobs through the store's verbs, as a worker would, one move at a time."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

from django.db import connection

from django_durable import operations, payloads, store
from django_durable.choices import DeathReason
from django_durable.errortext import ErrorText
from django_durable.jobtypes import registry
from django_durable.models import Job, Worker
from django_durable.worker.options import type_rates


class Hand:
    """Be a worker of these job types that does only what it is told."""

    def __init__(self, *names: str, worker: str = "hand") -> None:
        self.names = names
        self.owner = store.Owner(worker, uuid4(), timedelta(seconds=30))
        limits = {name: registry.get(name).options.concurrency_limit for name in names}
        self.scope = store.Scope(frozenset(names), limits=limits, rates=type_rates())

    def claim(self, slots: int = 10) -> list[store.Claim]:
        # Anew each time: one that has looked before rests after a look that was slow.
        claims = store.Claims(self.scope, self.owner)
        claims.look(connection)
        return claims.claim(connection, slots)

    def take(self) -> store.Claim:
        (claim,) = self.claim(1)
        return claim

    def succeed(self, claim: store.Claim, value: Any = None) -> Job:
        text = payloads.encode(value, where="result", limit=None)
        done = store.record_successes(
            connection, [store.Success(right(claim), text, timedelta(days=7))]
        )
        assert claim.id in done.succeeded
        return job_of(claim)

    def fail(self, claim: store.Claim, error: Exception, **how: Any) -> Job:
        how.setdefault("reason", DeathReason.EXHAUSTED)
        failure = store.Failure(right(claim), ErrorText.from_exception(error), **how)
        assert store.record_failure(connection, failure, operations.current_keep()).failed
        return job_of(claim)

    def kill(self, claim: store.Claim, error: Exception) -> Job:
        return self.fail(claim, error, retryable=False, reason=DeathReason.PERMANENT)

    def reject(self, claim: store.Claim, delay: timedelta) -> Job:
        keep = operations.current_keep()
        assert store.release(connection, [right(claim)], keep=keep, delay=delay, rejected=True)
        return job_of(claim)

    def give_back(self, claim: store.Claim) -> Job:
        assert store.release(connection, [right(claim)], keep=operations.current_keep())
        return job_of(claim)

    def park(self, claim: store.Claim, **until: Any) -> Job:
        assert store.park(connection, right(claim), **until) is store.Parked.PARKED
        return job_of(claim)


def right(claim: store.Claim) -> store.Right:
    return claim.id, claim.epoch


def job_of(claim: store.Claim) -> Job:
    return Job.all_objects.get(pk=claim.id)


def beat(*job_names: str, draining: bool = False, **columns: Any) -> Worker:
    """Write a worker's row with a fresh heartbeat, as its supervisor does."""
    card = {
        "incarnation": uuid4(),
        "name": "beating",
        "hostname": "host.example",
        "pid": 4711,
        "queues": [],
        "excluded_queues": [],
        "job_names": list(job_names),
        "capabilities": [],
        "slots": 10,
        "lease": timedelta(seconds=30),
        **columns,
    }
    store.beat(connection, store.WorkerCard(**card), draining=draining)
    return Worker.objects.get(pk=card["incarnation"])


def silence(worker: Worker, since: timedelta) -> None:
    """Let the worker's last heartbeat be so long ago."""
    Worker.objects.filter(pk=worker.pk).update(heartbeat_at=worker.heartbeat_at - since)


def bear(parent: store.Claim, call: Any, *args: Any) -> UUID:
    """Make a child of a running job."""
    from django_durable.enqueueing import new_job

    child = store.bear(
        connection,
        new_job(call.using(), args, {}),
        parent=parent.id,
        root=parent.root_id,
        epoch=parent.epoch,
    )
    assert child is not None
    return child
