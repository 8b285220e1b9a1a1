"""Fairness: one in so many claimed jobs is the oldest; keys take turns."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection

from django_durable import store
from django_durable.models import Queue
from tests.kernel import world
from tests.kernel.plans import watched
from tests.kernel.world import take

pytestmark = pytest.mark.usefixtures("tables")

MANY = 60
AGO = timedelta(seconds=-1)


def feed(count: int, **changes: Any) -> None:
    """Enqueue urgent jobs, younger than all there are."""
    store.enqueue_many(connection, [world.new_job(priority=20, **changes)] * count)


def priorities(claims: store.Claims, slots: int, claimed: int, **fed: Any) -> list[int]:
    """Claim under a constant feed of urgent jobs, and complete."""
    seen: list[int] = []
    while len(seen) < claimed:
        feed(slots, **fed)
        taken = take(claims, slots)
        seen += [claim.priority for claim in taken]
        world.complete(*[(claim.id, claim.epoch) for claim in taken])
    return seen


SIDES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    ({"concurrency_key": "old"}, {}),
    ({}, {"concurrency_key": "new"}),
    ({"concurrency_key": "old"}, {"concurrency_key": "new"}),
    ({"queue_name": "narrow"}, {}),
    ({"queue_name": "narrow"}, {"queue_name": "narrow"}),
]


@pytest.mark.parametrize(("old", "fed"), SIDES)
@pytest.mark.parametrize("slots", [1, 7])
def test_one_in_so_many_is_the_oldest_whatever_is_urgent(
    slots: int, old: dict[str, Any], fed: dict[str, Any]
) -> None:
    Queue.objects.create(name="narrow", max_running=30)
    store.enqueue_many(connection, [world.new_job(priority=-5, delay=AGO, **old)] * MANY)
    claims = world.claims(limits={"work": 30})
    seen = priorities(claims, slots, 10 * slots, **fed)
    assert seen.count(-5) == 10 * slots // 10


def test_without_a_share_the_urgent_ones_come_first(settings: Any) -> None:
    settings.DURABLE_FAIR_SHARE = None
    store.enqueue_many(connection, [world.new_job(delay=AGO)] * MANY)
    assert set(priorities(world.claims(), 5, 50)) == {20}


def test_the_share_is_that_of_the_setting(settings: Any) -> None:
    settings.DURABLE_FAIR_SHARE = 2
    store.enqueue_many(connection, [world.new_job(delay=AGO)] * MANY)
    assert priorities(world.claims(), 4, 40).count(0) == 20


def test_what_is_left_of_few_is_taken_in_the_order_of_priorities() -> None:
    jobs = [world.enqueue(priority=priority) for priority in (0, 5, 10)]
    claims = world.claims()
    assert [claim.id for claim in take(claims, 30)] == jobs[::-1]


def test_one_priority_costs_one_statement() -> None:
    store.enqueue_many(connection, [world.new_job()] * 40)
    claims = world.claims()
    with watched() as calls:
        assert len(claims.claim(connection, 30)) == 30
    assert [name for name, _params in calls] == ["claim"]


def test_a_tenant_with_many_jobs_delays_one_with_few_by_no_more_than_a_claim() -> None:
    store.enqueue_many(connection, [world.new_job(concurrency_key="big")] * 5000)
    few = store.enqueue_many(connection, [world.new_job(concurrency_key="small")] * 10)
    claims = world.claims(limits={"work": 5})
    rounds = 0
    while set(world.statuses([made.id for made in few])) != {"SUCCESSFUL"}:
        taken = take(claims, 4)
        world.complete(*[(claim.id, claim.epoch) for claim in taken])
        rounds += 1
    # At two of four a round.
    assert rounds <= 7
