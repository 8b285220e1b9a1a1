"""What has not started in time never starts: it is cancelled."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from django.db import connection

from django_durable import store
from django_durable.choices import OnDuplicate
from django_durable.models import DeadLetter, Job
from tests.kernel import world
from tests.kernel.interleaving import Director, Run
from tests.kernel.world import advance, take

SOON = {"start_within": 10.0}
TEN = timedelta(seconds=10)
SECOND = timedelta(seconds=1)


def enqueue(**changes: Any) -> UUID:
    return world.enqueue(options=SOON, **changes)


def cancel_late(limit: int = 100) -> list[UUID]:
    return store.cancel_late(store.connection(), keep=world.KEEP, limit=limit)[0]


def start_by(job: UUID) -> timedelta:
    """Return how long after its enqueue the job may start."""
    row = world.job(job)
    assert row.start_by is not None
    return row.start_by - row.enqueued_at


def test_the_time_counts_from_when_it_may_first_start(tables: None) -> None:
    assert start_by(enqueue()) == TEN
    assert start_by(enqueue(delay=TEN)) == 2 * TEN
    assert start_by(enqueue(run_after=world.LONG_AGO)) == TEN
    assert world.job(world.enqueue()).start_by is None


@pytest.mark.parametrize("key", [None, "k"])
def test_a_claim_starts_none_that_is_too_late(tables: None, key: str | None) -> None:
    early, late = enqueue(concurrency_key=key), enqueue(concurrency_key=key)
    claims = world.claims(limits={"work": 1})
    assert [claim.id for claim in take(claims, 1)] == [early]
    advance(TEN)
    assert take(claims) == []
    assert cancel_late() == [late]
    row = world.job(late)
    assert (row.status, row.cancel_reason, row.attempt) == ("CANCELLED", "not started in time", 0)
    assert row.kept_until - row.finished_at == world.WEEK
    world.assert_laws()


def test_what_has_started_is_late_no_more(tables: None) -> None:
    failed, parked = enqueue(), enqueue()
    rights = {claim.id: (claim.id, claim.epoch) for claim in take(world.claims())}
    store.record_failure(connection, world.failure(rights[failed]), world.KEEP)
    store.park(connection, rights[parked], wake_at=world.LONG_AGO)
    advance(2 * TEN)
    assert cancel_late() == []
    assert {claim.id for claim in take(world.claims())} == {failed, parked}


def test_what_was_rejected_or_given_back_has_not_started(tables: None) -> None:
    job = enqueue()
    (claim,) = take(world.claims())
    right = (claim.id, claim.epoch)
    store.release(connection, [right], keep=world.KEEP, delay=SECOND, rejected=True)
    assert start_by(job) == TEN
    advance(TEN)
    assert take(world.claims()) == []
    assert cancel_late() == [job]


def test_a_replacement_and_a_replay_begin_anew_and_run_now_shortens_nothing(tables: None) -> None:
    job = enqueue(idempotency_key="i", delay=5 * TEN)
    advance(TEN)
    again = {"idempotency_key": "i", "on_duplicate": OnDuplicate.REPLACE}
    assert enqueue(**again, delay=TEN) == job
    assert TEN * 3 <= start_by(job) < TEN * 3 + SECOND
    before = start_by(job)
    store.run_now(connection, [job])
    assert start_by(job) == before
    assert world.enqueue(**again) == job
    assert world.job(job).start_by is None

    right = world.running(options=SOON, name="dead")
    store.record_failure(connection, world.failure(right, retryable=False), world.KEEP)
    advance(9 * TEN)
    replayed = store.replay(connection, DeadLetter.objects.get().pk, delay=TEN)
    assert replayed.id
    assert start_by(replayed.id) == 2 * TEN


def test_late_children_wake_their_parent(tables: None) -> None:
    parent = world.running("parent")
    child = store.bear(
        connection,
        world.new_job("child", options=SOON),
        parent=parent[0],
        root=parent[0],
        epoch=parent[1],
    )
    assert child
    store.park(connection, parent, awaited=[child])
    advance(TEN)
    assert cancel_late() == [child]
    assert world.statuses([parent[0], child]) == ["READY", "CANCELLED"]
    world.assert_laws()


def test_late_ones_are_cancelled_a_batch_at_a_time(tables: None) -> None:
    for _ in range(5):
        enqueue()
    advance(TEN)
    assert [len(cancel_late(2)) for _ in range(4)] == [2, 2, 1, 0]


def test_a_claim_meets_late_ones_and_says_that_it_is_incomplete(tables: None) -> None:
    for _ in range(500):
        enqueue()
    advance(TEN)
    last = world.enqueue()
    claims = world.claims()
    assert take(claims, 1) == []
    assert claims.incomplete
    while cancel_late():
        pass
    assert [claim.id for claim in take(claims, 1)] == [last]


# Beside others.


def late_job(**changes: Any) -> UUID:
    """Make a job that is late, by now."""
    job = enqueue(**changes)
    Job.all_objects.filter(pk=job).update(start_by=world.LONG_AGO)
    return job


def test_two_cancels_of_late_ones_cancel_each_once(director: Director) -> None:
    def prepare() -> list[UUID]:
        world.empty_tables()
        return [late_job() for _ in range(3)]

    def check(made: list[UUID], run: Run) -> None:
        world.assert_laws()
        both = run.value("A") + run.value("B")
        assert len(both) == len(set(both))
        assert sorted(both + cancel_late()) == sorted(made)

    director.explore(prepare, lambda made: cancel_late(2), lambda made: cancel_late(2), check)


def test_a_late_one_beside_a_cancel_and_a_replacement(director: Director) -> None:
    def prepare() -> UUID:
        world.empty_tables()
        return late_job(idempotency_key="i")

    def replace(job: UUID) -> Any:
        return enqueue(idempotency_key="i", on_duplicate=OnDuplicate.REPLACE)

    def check_cancel(job: UUID, run: Run) -> None:
        world.assert_laws()
        late, (changed, _queues) = run.value("A"), run.value("B")
        assert [*late, *(change.id for change in changed)] == [job]
        assert world.statuses([job]) == ["CANCELLED"]

    def check_replace(job: UUID, run: Run) -> None:
        world.assert_laws()
        (living,) = Job.objects.filter(idempotency_key="i")
        assert living.pk == run.value("B")
        assert (living.pk == job) == (run.value("A") == [])
        assert living.status == "READY"

    director.explore(
        prepare, lambda job: cancel_late(), lambda job: world.cancel(job), check_cancel
    )
    director.explore(prepare, lambda job: cancel_late(), replace, check_replace)


def test_a_late_child_beside_the_park_that_awaits_it(director: Director) -> None:
    def prepare() -> tuple[store.Right, UUID]:
        world.empty_tables()
        parent = world.running("parent")
        child = store.bear(
            store.connection(),
            world.new_job("child", options=SOON),
            parent=parent[0],
            root=parent[0],
            epoch=parent[1],
        )
        assert child
        Job.all_objects.filter(pk=child).update(start_by=world.LONG_AGO)
        return parent, child

    def park(made: tuple[store.Right, UUID]) -> store.Parked:
        return store.park(store.connection(), made[0], awaited=[made[1]])

    def check(made: tuple[store.Right, UUID], run: Run) -> None:
        cancel_late()
        world.assert_laws()
        parked = run.value("B") is store.Parked.PARKED
        assert world.statuses([made[0][0], made[1]]) == [
            "READY" if parked else "RUNNING",
            "CANCELLED",
        ]

    director.explore(prepare, lambda made: cancel_late(), park, check)
