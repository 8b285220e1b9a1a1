"""Fifty claimers at the same moment."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connection, connections

from django_durable import store
from django_durable.models import Job, Queue
from tests.kernel import world

CLAIMERS = 50
RATE = {"work": store.TypeRate("work", 7, 60)}
CASES: list[tuple[dict[str, Any], dict[str, Any], int]] = [
    ({"concurrency_key": "k"}, {}, 1),
    ({"queue_name": "narrow"}, {}, 5),
    ({}, {"rates": RATE}, 7),
    ({"concurrency_key": "k"}, {"rates": RATE, "limits": {"work": None}}, 7),
]


@pytest.mark.parametrize(("job", "scope", "limit"), CASES)
def test_fifty_claimers_at_once_take_as_many_as_there_is_room_for(
    tables: None, job: dict[str, Any], scope: dict[str, Any], limit: int
) -> None:
    Queue.objects.create(name="narrow", max_running=5)
    store.enqueue_many(connection, [world.new_job(**job)] * 2 * CLAIMERS)
    barrier = threading.Barrier(CLAIMERS)

    def claim() -> int:
        try:
            claims = world.claims(**scope)
            barrier.wait(60)
            taken = len(claims.claim(store.connection(), 3))
            while claims.incomplete and not taken:
                taken = len(claims.claim(store.connection(), 3))
            return taken
        finally:
            connections.close_all()

    with ThreadPoolExecutor(CLAIMERS) as pool:
        counts = list(pool.map(lambda _number: claim(), range(CLAIMERS)))

    assert sum(counts) == limit
    assert Job.all_objects.filter(status="RUNNING").count() == limit
    world.assert_laws()
