"""The jobs of one key start in the order of the claim, whatever their lanes."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from django.db import connection

from django_durable.store import budgets
from tests.kernel import world
from tests.kernel.world import take

# What the lanes of one key may differ in, but for the priority.
LANES = [
    {"name": "zeta"},
    {"name": "alpha"},
    {"name": "alpha", "queue_name": "other"},
    {"name": "zeta", "requires": "gpu"},
]


def claimer() -> Any:
    return world.claims("zeta", "alpha", capabilities=frozenset({"gpu"}))


def started(claims: Any, slots: int) -> list[UUID]:
    """Claim and complete until nothing is left; return the jobs in the order of their starts."""
    order: list[UUID] = []
    while taken := take(claims, slots):
        order += [claim.id for claim in taken]
        world.complete(*[(claim.id, claim.epoch) for claim in taken])
    return order


# Few, which one look brings, and so many that the keys are visited one by one.
@pytest.mark.parametrize("keys", [1, 3, 120])
@pytest.mark.parametrize("slots", [1, 4, 100])
def test_jobs_of_a_key_start_in_due_order_across_lanes(tables: None, keys: int, slots: int) -> None:
    rounds = 3 if keys < 100 else 1
    made: dict[str, list[UUID]] = {f"key {number}": [] for number in range(keys)}
    for place in range(rounds * len(LANES)):
        for key, ids in made.items():
            ids.append(world.enqueue(**LANES[place % len(LANES)], concurrency_key=key))

    order = started(claimer(), slots)

    places = {job_id: place for place, job_id in enumerate(order)}
    assert len(places) == sum(map(len, made.values()))
    for ids in made.values():
        assert sorted(ids, key=places.__getitem__) == ids
    world.assert_laws()


def test_keys_of_several_lanes_take_turns(tables: None) -> None:
    big = [world.enqueue(**LANES[n % 4], concurrency_key="big") for n in range(200)]
    small = [world.enqueue(**LANES[n % 4], concurrency_key="small") for n in range(10)]
    order = started(claimer(), 1)
    assert set(order) == {*big, *small}
    assert all(order[2 * place : 2 * place + 2].count(small[place]) == 1 for place in range(10))


@pytest.mark.parametrize("others", [0, 120])
@pytest.mark.parametrize("lane", [{}, {"priority": -5}, {"priority": -5, "name": "alpha"}])
def test_a_key_that_becomes_free_between_two_looks_lets_nobody_overtake(
    tables: None, monkeypatch: pytest.MonkeyPatch, others: int, lane: dict[str, Any]
) -> None:
    holder = world.running("zeta", concurrency_key="k")
    first = world.enqueue("zeta", concurrency_key="k")
    second = world.enqueue(**{"name": "zeta", "concurrency_key": "k", **lane})
    for number in range(others):
        # Held back as well, so that nothing else is to be taken.
        world.running("zeta", concurrency_key=f"other {number}")
        world.enqueue("zeta", concurrency_key=f"other {number}")
    claims = claimer()
    claims.look(connection)
    real = budgets.rows
    looks = []

    def look(db: Any, statement: str, **params: Any) -> Any:
        found = real(db, statement, **params)
        if statement == "keyed" and not looks:
            looks.append(params)
            world.complete(holder)
        return found

    monkeypatch.setattr(budgets, "rows", look)
    taken = claims.claim(connection, 1)
    assert looks
    assert [claim.id for claim in taken] != [second]
    if not taken:
        assert claims.incomplete or len(lane) == 0
        taken = take(claims, 1)
    assert [claim.id for claim in taken] == [first]
    world.assert_laws()


def test_a_type_that_may_run_beside_others_does_not_wait_behind_one_that_may_not(
    tables: None,
) -> None:
    claims = world.claims("narrow", "wide", limits={"narrow": 1, "wide": 3})
    holder = world.enqueue("narrow", concurrency_key="k")
    (taken,) = take(claims)
    assert taken.id == holder
    world.enqueue("narrow", concurrency_key="k", priority=5)
    wide = [world.enqueue("wide", concurrency_key="k") for _ in range(3)]
    assert [claim.id for claim in take(claims)] == wide[:2]
