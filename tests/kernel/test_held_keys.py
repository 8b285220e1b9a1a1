"""Keys that parked jobs keep."""

from __future__ import annotations

import pytest
from django.db import connection

from django_durable import store
from tests.kernel import world
from tests.kernel.interleaving import Director, Run
from tests.kernel.world import take


def test_a_woken_holder_goes_on_before_others_and_its_key_stays_held(tables: None) -> None:
    child = world.enqueue("child")
    holder = world.running(concurrency_key="k")
    store.park(connection, holder, awaited=[child], hold_key=True)
    world.enqueue(concurrency_key="k")
    claims = world.claims("work", "child")
    (taken,) = take(claims)
    world.complete((taken.id, taken.epoch))
    world.assert_laws()
    assert world.statuses([holder[0]]) == ["READY"]
    assert [claim.id for claim in take(claims)] == [holder[0]]
    world.assert_laws()
    assert world.key_load("k") == 1


@pytest.mark.parametrize("end", ["cancel", "die", "complete"])
def test_the_end_of_a_parked_holder_frees_its_key(tables: None, end: str) -> None:
    holder = world.running(concurrency_key="k")
    waiting = world.enqueue(concurrency_key="k")
    store.park(connection, holder, wake_at=world.LONG_AGO, hold_key=True)
    claims = world.claims()
    if end == "cancel":
        world.cancel(holder[0])
    else:
        (again,) = take(claims)
        assert again.id == holder[0]
        right = (again.id, again.epoch)
        if end == "die":
            store.record_failure(connection, world.failure(right, retryable=False), world.KEEP)
        else:
            world.complete(right)
    world.assert_laws()
    assert [claim.id for claim in take(claims)] == [waiting]


def test_a_claim_beside_a_park_that_keeps_its_key_takes_no_other(director: Director) -> None:
    def prepare() -> tuple[store.Right, store.Claims]:
        world.empty_tables()
        holder = world.running(concurrency_key="k")
        world.enqueue(concurrency_key="k")
        return holder, world.claims()

    def park(made: tuple[store.Right, store.Claims]) -> store.Parked:
        return store.park(store.connection(), made[0], wake_at=world.NEVER, hold_key=True)

    def check(made: tuple[store.Right, store.Claims], run: Run) -> None:
        world.assert_laws()
        assert run.value("A") == []
        assert world.key_load("k") == 1

    director.explore(prepare, lambda made: made[1].claim(store.connection(), 5), park, check)
