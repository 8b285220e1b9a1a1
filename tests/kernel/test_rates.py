"""Rates: no window holds more starts than it may, whoever starts them; what is held back holds up
nobody, and it is known when the next one may start.
"""

from __future__ import annotations

import random
import time
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from django.db import connection

from django_durable import store
from django_durable.models import Job, Queue, Start
from django_durable.store import TypeRate
from tests.kernel import world
from tests.kernel.interleaving import Director, Run
from tests.kernel.world import advance, take

TEN = TypeRate("work", 10, 60)
MINUTE = timedelta(minutes=1)


def claims(*names: str, rates: dict[str, TypeRate] | None = None, **more: Any) -> store.Claims:
    return world.claims(*names, rates={"work": TEN} if rates is None else rates, **more)


def ids(taken: list[store.Claim]) -> list[UUID]:
    return [claim.id for claim in taken]


def enqueue(count: int, name: str = "work", **changes: Any) -> list[UUID]:
    new = world.new_job(name, **changes)
    return [made.id for made in store.enqueue_many(connection, [new] * count)]


def limit_queue(rate: str, **more: Any) -> None:
    Queue.objects.update_or_create(name="paced", defaults={"rate_limit": rate, **more})


def opens_in(claimer: store.Claims) -> float:
    return claimer.opens_at - time.monotonic()


CASES: list[tuple[dict[str, Any], dict[str, TypeRate], str | None]] = [
    ({}, {"work": TEN}, None),
    ({"concurrency_key": "k"}, {"work": TEN}, None),
    ({"queue_name": "paced"}, {}, "10/m"),
    ({"queue_name": "paced", "concurrency_key": "k"}, {}, "10/m"),
]


@pytest.mark.parametrize(("job", "rates", "queue"), CASES)
def test_no_more_start_than_the_rate_says_until_the_window_has_passed(
    tables: None, job: dict[str, Any], rates: dict[str, TypeRate], queue: str | None
) -> None:
    if queue:
        limit_queue(queue)
    made = enqueue(25, **job)
    first, second = (claims(rates=rates, limits={"work": None}) for _ in range(2))

    assert ids(take(first, 4)) == made[:4]
    advance(MINUTE / 2)
    assert ids(take(second)) == made[4:10]
    assert take(first) == []
    assert 28 < opens_in(first) < 30
    assert take(second, 1) == []

    advance(timedelta(seconds=opens_in(first)))
    assert len(take(first, 1)) == 1
    assert len(take(second)) == 3
    assert take(second) == []
    assert 25 < opens_in(second) < 30
    world.assert_laws()


@pytest.mark.parametrize(("job", "rates", "queue"), CASES)
def test_no_window_holds_more_starts_whenever_they_come(
    tables: None, job: dict[str, Any], rates: dict[str, TypeRate], queue: str | None
) -> None:
    if queue:
        limit_queue(queue)
    enqueue(150, **job)
    both = [claims(rates=rates, limits={"work": None}) for _ in range(2)]
    chance = random.Random(6)  # noqa: S311
    started: list[datetime] = []
    while len(started) < 100:
        taken = take(chance.choice(both), chance.randint(1, 6))
        started += [claim.claimed_at for claim in taken]
        advance(timedelta(seconds=chance.uniform(0, 8)))
    for first, eleventh in zip(started, started[10:], strict=False):
        assert eleventh - first > MINUTE
    # And the rate is used: 100 starts need nine minutes.
    assert started[-1] - started[0] < 11 * MINUTE


@pytest.mark.parametrize(("job", "rates", "queue"), CASES)
def test_two_claims_stay_within_a_rate(
    director: Director, job: dict[str, Any], rates: dict[str, TypeRate], queue: str | None
) -> None:
    few = {name: rate._replace(limit=3) for name, rate in rates.items()}

    def prepare() -> list[store.Claims]:
        world.empty_tables()
        if queue:
            limit_queue("3/m")
        enqueue(8, **job)
        return [claims(rates=few, limits={"work": None}) for _ in range(2)]

    def check(made: list[store.Claims], run: Run) -> None:
        world.assert_laws()
        both = len(run.value("A") + run.value("B"))
        assert 1 <= both <= 3
        assert both == 3 or made[0].incomplete or made[1].incomplete
        assert len(claims(rates=few, limits={"work": None}).claim(connection, 9)) == 3 - both
        assert sum(Start.objects.values_list("starts", flat=True)) == 3

    director.explore(
        prepare,
        lambda made: made[0].claim(store.connection(), 2),
        lambda made: made[1].claim(store.connection(), 5),
        check,
    )


def test_all_lanes_and_names_of_a_type_share_its_rate(tables: None) -> None:
    for change in ({}, {"priority": 5}, {"queue_name": "other"}, {"name": "alias"}):
        enqueue(4, **change)
    claimer = claims("work", "alias", rates={"work": TEN, "alias": TEN})
    taken = take(claimer)
    assert len(taken) == 10
    assert [claim.priority for claim in taken] == [5] * 4 + [0] * 6
    assert take(claimer) == []


def test_job_types_share_the_rate_of_a_key_each_by_its_own_window(tables: None) -> None:
    rates = {"work": TypeRate("work", 5, 60), "slow": TypeRate("slow", 8, 3600)}
    limits = {"work": None, "slow": None}
    enqueue(9, concurrency_key="k")
    enqueue(9, "slow", concurrency_key="k")
    enqueue(9, concurrency_key="other")
    only = claims("work", rates=rates, limits=limits)
    both = claims("work", "slow", rates=rates, limits=limits)

    assert len(take(only)) == 10
    advance(2 * MINUTE)
    # Five of this hour started under the key, none of this minute.
    taken = [(claim.name, claim.concurrency_key) for claim in take(both)]
    assert taken.count(("work", "other")) == 4
    assert 3 <= len(taken) - 4 <= 5
    assert taken.count(("slow", "k")) <= 3
    advance(2 * MINUTE)
    take(both)
    advance(2 * MINUTE)
    assert [claim.name for claim in take(both)].count("slow") == 0
    advance(timedelta(hours=1))
    assert len(take(both)) > 0


def test_a_retry_counts_and_what_resumes_does_not(tables: None) -> None:
    rate = {"work": TypeRate("work", 2, 60)}
    for key in (None, "k"):
        world.empty_tables()
        claimer = claims(rates=rate, limits={"work": None})
        parked, failed = enqueue(2, concurrency_key=key)
        rights = {claim.id: (claim.id, claim.epoch) for claim in take(claimer)}
        store.park(connection, rights[parked], wake_at=world.LONG_AGO)
        store.record_failure(connection, world.failure(rights[failed]), world.KEEP)
        enqueue(50, concurrency_key=key)

        # Behind others and without any room it goes on.
        (again,) = take(claimer)
        assert (again.id, again.attempt, again.resumed) == (parked, 1, True)
        store.record_failure(connection, world.failure((again.id, again.epoch)), world.KEEP)
        assert take(claimer) == []
        advance(MINUTE)
        assert len(take(claimer)) == 2
        assert take(claimer) == []


def test_what_resumes_in_a_queue_with_a_rate_goes_on(tables: None) -> None:
    for key in (None, "k"):
        world.empty_tables()
        limit_queue("1/m")
        parked, *_more = enqueue(20, queue_name="paced", concurrency_key=key)
        claimer = claims(rates={})
        (claim,) = take(claimer)
        store.park(connection, (claim.id, claim.epoch), wake_at=world.LONG_AGO)
        assert ids(take(claimer)) == [parked]
        advance(2 * MINUTE)
        world.complete(*[(c.pk, c.epoch) for c in Job.all_objects.filter(status="RUNNING")])
        assert len(take(claimer)) == 1


def test_a_claim_counts_though_it_is_given_back(tables: None) -> None:
    enqueue(2)
    claimer = claims(rates={"work": TypeRate("work", 1, 60)})
    (claim,) = take(claimer)
    store.release(connection, [(claim.id, claim.epoch)], keep=world.KEEP)
    assert take(claimer) == []


def test_a_backlog_behind_a_rate_holds_nobody_up(tables: None) -> None:
    enqueue(500, priority=10)
    enqueue(500, concurrency_key="k", priority=10)
    enqueue(500, queue_name="paced", priority=10)
    limit_queue("3/m")
    free = enqueue(5, "free")
    claimer = claims("work", "free", rates={"work": TypeRate("work", 1, 60)}, limits={"work": None})
    for _ in range(3):
        take(claimer, 4)
    assert world.statuses(free) == ["RUNNING"] * 5


def test_a_key_s_limit_and_a_rate_hold_at_once(tables: None) -> None:
    enqueue(9, concurrency_key="k")
    claimer = claims(rates={"work": TypeRate("work", 3, 60)}, limits={"work": 2})
    for expected in (2, 1, 0):
        taken = take(claimer)
        assert len(taken) == expected
        world.complete(*[(claim.id, claim.epoch) for claim in taken])
    assert 55 < opens_in(claimer) <= 60


def test_a_rate_of_a_queue_holds_from_its_change_on(tables: None) -> None:
    """Also for a claimer that has not looked since."""
    enqueue(30, queue_name="paced")
    enqueue(30, queue_name="paced", concurrency_key="k")
    claimer = world.claims(limits={"work": None})
    limit_queue("1/m")
    assert claimer.claim(connection, 5) == []
    assert len(take(claimer)) == 1
    limit_queue("4/m")
    assert len(claimer.claim(connection, 5)) == 3
    limit_queue("2/m")
    advance(MINUTE)
    assert len(claimer.claim(connection, 5)) == 2
    Queue.objects.update(rate_limit=None)
    assert len(take(claimer, 7)) == 7


def test_a_lowered_limit_of_a_queue_holds_at_once(tables: None) -> None:
    """What runs goes on, and nothing starts until it fits."""
    made = enqueue(9, queue_name="paced")
    Queue.objects.create(name="paced", max_running=5)
    claimer = world.claims()
    taken = take(claimer, 5)
    Queue.objects.update(max_running=2)
    for left, claim in enumerate(taken[:3], start=2):
        assert claimer.claim(connection, 5) == []
        assert world.statuses(made).count("RUNNING") == 7 - left
        world.complete((claim.id, claim.epoch))
    assert claimer.claim(connection, 5) == []
    world.complete((taken[3].id, taken[3].epoch))
    assert len(claimer.claim(connection, 5)) == 1


def test_starts_are_dropped_after_their_window(tables: None) -> None:
    enqueue(5)
    enqueue(1, "free")
    take(claims("work", "free"))
    assert Start.objects.count() == 1
    assert store.drop_starts(connection, 10) == 0
    advance(2 * MINUTE)
    assert store.drop_starts(connection, 10) == 1
    assert not Start.objects.exists()


def test_nothing_opens_where_nothing_is_due(tables: None) -> None:
    limit_queue("1/m")
    enqueue(1)
    enqueue(1, queue_name="paced")
    enqueue(1, concurrency_key="k")
    enqueue(1, concurrency_key="k", delay=world.WEEK)
    claimer = claims(rates={"work": TypeRate("work", 1, 60)}, limits={"work": None})
    while take(claimer):
        pass
    assert not claimer.incomplete
    # The one in the queue has a rate to wait for; the others are gone, or not due.
    world.cancel(Job.all_objects.get(status="READY", queue_name="paced").pk)
    take(claimer)
    assert claimer.opens_at == float("inf")


def test_what_a_full_queue_leaves_out_takes_no_place_of_its_type_for_long(tables: None) -> None:
    Queue.objects.update_or_create(name="paced", defaults={"max_running": 2})
    rates = {"paced work": TypeRate("paced work", 1, 60)}
    claimer = claims("work", "paced work", rates=rates)
    first = enqueue(2, priority=5, queue_name="paced")
    enqueue(1, "paced work", priority=5, queue_name="paced")
    (behind,) = enqueue(1, "paced work")

    assert ids(take(claimer)) == first
    # It has seen no more; so it must not say that there is none.
    assert claimer.incomplete
    assert ids(take(claimer)) == [behind]
    assert take(claimer) == []
    assert not claimer.incomplete
