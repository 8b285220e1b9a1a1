"""A commit whose answer never came: what was written is found again, and nothing is done twice."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.db import connection

from django_durable import store
from django_durable.choices import JobStatus
from tests.kernel import world

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def laws() -> Iterator[None]:
    yield
    world.assert_laws()


def standing(right: store.Right) -> store.Standing:
    return store.standing(connection, [right[0]])[right[0]]


def give_back(by: store.Owner, held: list[store.Right]) -> list[object]:
    released = store.release(connection, [], keep=world.KEEP, claimer=by.claimer, held=held)
    return [each.id for each in released]


def test_a_lost_claim_is_given_back_uncounted_and_what_is_held_stays() -> None:
    by, other = world.owner(), world.owner()
    held = world.running("held", by=by)
    others = world.running("others", by=other)
    lost = [world.enqueue("lost") for _ in range(3)]
    assert len(world.claim("lost", by=by)) == 3
    assert sorted(give_back(by, [held])) == lost
    assert world.statuses([*lost, held[0], others[0]]) == ["READY"] * 3 + ["RUNNING"] * 2
    assert [world.job(job).attempt for job in lost] == [0, 0, 0]
    assert world.job(lost[0]).started_at is None
    assert give_back(by, [held]) == []


def test_a_lost_claim_on_a_job_that_is_held_under_an_older_number_is_given_back() -> None:
    by = world.owner()
    job, epoch = world.running(by=by)
    store.release(connection, [(job, epoch)], keep=world.KEEP)
    world.claim(by=by)
    assert give_back(by, [(job, epoch)]) == [job]


def test_a_lost_claim_that_somebody_else_has_taken_since_is_his() -> None:
    by = world.owner()
    job, _epoch = world.running(by=by)
    world.lapse(job)
    store.rescue(connection, world.KEEP)
    (taken,) = world.claim()
    assert give_back(by, []) == []
    assert standing((job, taken.epoch)).holds(taken.epoch)


def test_a_success_that_was_stored_finds_itself() -> None:
    right = world.running()
    assert world.complete(right).succeeded == {right[0]}
    assert world.complete(right).succeeded == frozenset()
    assert standing(right).ended_by(right[1])
    assert standing(right).status is JobStatus.SUCCESSFUL


@pytest.mark.parametrize(("attempts", "ended"), [(3, False), (1, True)])
def test_a_failure_that_was_stored_finds_itself(attempts: int, ended: bool) -> None:
    right = world.running(max_attempts=attempts)
    failed = world.failure(right, delay=world.WEEK)
    assert store.record_failure(connection, failed, world.KEEP).failed
    assert not store.record_failure(connection, failed, world.KEEP).failed
    assert standing(right).left_by(right[1])
    assert standing(right).ended_by(right[1]) is ended
    assert world.job(right[0]).attempts.count() == 1


@pytest.mark.parametrize("attempts", [3, 1])
def test_a_rescue_is_not_taken_for_an_own_write(attempts: int) -> None:
    """The row has the same epoch, and is DEAD or READY, but the outcome was not stored."""
    right = world.running(max_attempts=attempts)
    world.lapse(right[0])
    store.rescue(connection, world.KEEP)
    assert world.complete(right).succeeded == frozenset()
    assert not standing(right).left_by(right[1])
    assert not standing(right).ended_by(right[1])


def test_a_cancelled_rescue_is_not_taken_for_an_own_write() -> None:
    right = world.running()
    world.cancel(right[0])
    world.lapse(right[0])
    store.rescue(connection, world.KEEP)
    assert standing(right).status is JobStatus.CANCELLED
    assert not standing(right).ended_by(right[1])


def test_a_later_claim_is_not_taken_for_an_own_write() -> None:
    right = world.running()
    world.lapse(right[0])
    store.rescue(connection, world.KEEP)
    (taken,) = world.claim()
    world.complete((taken.id, taken.epoch))
    assert world.complete(right).succeeded == frozenset()
    assert not standing(right).left_by(right[1])
    assert standing(right).ended_by(taken.epoch)


def test_a_park_that_was_stored_finds_itself() -> None:
    right = world.running()
    assert store.park(connection, right, wake_at=world.NEVER) is store.Parked.PARKED
    assert store.park(connection, right, wake_at=world.NEVER) is store.Parked.REFUSED
    assert standing(right).status is JobStatus.WAITING
    assert standing(right).left_by(right[1])


def test_a_return_that_was_stored_finds_itself() -> None:
    right = world.running()
    assert store.release(connection, [right], keep=world.KEEP, rejected=True)
    assert store.release(connection, [right], keep=world.KEEP, rejected=True) == ()
    assert standing(right).left_by(right[1])
    assert world.job(right[0]).rejections == 1


def test_a_renewal_may_be_repeated() -> None:
    right = world.running()
    assert store.renew(connection, [right], world.LEASE) == {right[0]: False}
    assert store.renew(connection, [right], world.LEASE) == {right[0]: False}


def test_a_job_that_is_gone_has_no_standing() -> None:
    right = world.running()
    world.complete(right)
    store.delete_trees(connection, [right[0]])
    assert store.standing(connection, [right[0]]) == {}
