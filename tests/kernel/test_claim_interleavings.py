"""Claims beside claims, and beside whatever changes what they picked."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import pytest

from django_durable import store
from django_durable.choices import OnDuplicate
from django_durable.models import Job, Queue
from tests.kernel import world
from tests.kernel.interleaving import Director, Run


@dataclass
class Race:
    """Hold due jobs, and two claimers that have looked already."""

    jobs: list[UUID]
    first: store.Claims
    second: store.Claims
    more: list[Any] = field(default_factory=list)


def race(*jobs: dict[str, Any], **scope: Any) -> Race:
    world.empty_tables()
    ids = [world.enqueue(**job) for job in jobs]
    names = {job.get("name", "work") for job in jobs}
    return Race(ids, world.claims(*names, **scope), world.claims(*names, **scope))


def claim(claims: store.Claims, slots: int = 10) -> list[UUID]:
    return [taken.id for taken in claims.claim(store.connection(), slots)]


def first(made: Race) -> list[UUID]:
    return claim(made.first)


def second(made: Race) -> list[UUID]:
    return claim(made.second)


def limit_queue(name: str, maximum: int) -> None:
    Queue.objects.create(name=name, max_running=maximum)


def drain(*names: str, **scope: Any) -> list[UUID]:
    """Claim and complete until nothing is due; what is held up must come once there is room."""
    order = []
    claims = world.claims(*names, **scope)
    for right in Job.all_objects.filter(status="RUNNING").values_list("pk", "epoch"):
        world.complete(right)
    while taken := claims.claim(store.connection(), 2):
        world.assert_laws()
        order += [one.id for one in taken]
        world.complete(*[(one.id, one.epoch) for one in taken])
    assert not Job.all_objects.filter(finished_at=None).exists()
    return order


def test_two_claims_share_the_jobs(director: Director) -> None:
    def check(made: Race, run: Run) -> None:
        world.assert_laws()
        both = run.value("A") + run.value("B")
        assert sorted(both) == sorted(made.jobs)

    director.explore(lambda: race({}, {}, {}, {}, {}), first, second, check)


@pytest.mark.parametrize("limit", [1, 2])
def test_two_claims_on_one_key_stay_within_its_limit(director: Director, limit: int) -> None:
    limits = {"work": limit}

    def check(made: Race, run: Run) -> None:
        world.assert_laws()
        both = run.value("A") + run.value("B")
        assert len(set(both)) == len(both) == limit
        assert world.key_load("k") == limit
        drain("work", limits=limits)

    jobs = [{"concurrency_key": "k"}] * 4
    runs = director.explore(lambda: race(*jobs, limits=limits), first, second, check)
    assert len(runs) > 10


def test_two_job_types_share_a_key(director: Director) -> None:
    def check(made: Race, run: Run) -> None:
        world.assert_laws()
        assert len(run.value("A") + run.value("B")) == 1
        assert world.key_load("k") == 1

    director.explore(
        lambda: race(
            {"name": "one", "concurrency_key": "k"}, {"name": "other", "concurrency_key": "k"}
        ),
        first,
        second,
        check,
    )


@pytest.mark.parametrize("maximum", [1, 3])
def test_two_claims_on_a_limited_queue_stay_within_its_limit(
    director: Director, maximum: int
) -> None:
    def prepare() -> Race:
        made = race(*[{"queue_name": "narrow"}] * 5, {"queue_name": "wide"})
        limit_queue("narrow", maximum)
        made.first.look(store.connection())
        made.second.look(store.connection())
        return made

    def check(made: Race, run: Run) -> None:
        world.assert_laws()
        both = run.value("A") + run.value("B")
        assert len(set(both)) == len(both) == maximum + 1
        drain("work")

    director.explore(prepare, first, second, check)


def test_a_key_and_a_queue_limit_hold_at_once(director: Director) -> None:
    def prepare() -> Race:
        jobs = [{"queue_name": "narrow", "concurrency_key": key} for key in "aabbcc"]
        made = race(*jobs)
        limit_queue("narrow", 2)
        made.first.look(store.connection())
        made.second.look(store.connection())
        return made

    def check(made: Race, run: Run) -> None:
        world.assert_laws()
        assert len(run.value("A") + run.value("B")) == 2
        assert all(world.key_load(key) <= 1 for key in "abc")
        drain("work")

    director.explore(prepare, first, second, check)


@pytest.mark.parametrize("jobs", [[{"concurrency_key": key} for key in "abcd"], [{}] * 4])
def test_a_claim_that_left_jobs_to_another_one_says_so(
    director: Director, jobs: list[dict[str, Any]]
) -> None:
    def check(made: Race, run: Run) -> None:
        world.assert_laws()
        both = run.value("A") + run.value("B")
        assert len(set(both)) == len(both)
        if len(both) < 4:
            assert made.first.incomplete or made.second.incomplete
        assert sorted(both + drain("work")) == sorted(made.jobs)

    director.explore(
        lambda: race(*jobs),
        lambda made: claim(made.first, 2),
        lambda made: claim(made.second, 2),
        check,
    )


def test_the_end_of_a_key_s_holder_frees_it_once(director: Director) -> None:
    def prepare() -> Race:
        world.empty_tables()
        holder = world.running(concurrency_key="k")
        jobs = [world.enqueue(concurrency_key="k") for _ in range(2)]
        return Race(jobs, world.claims("work"), world.claims("work"), [holder])

    def check(made: Race, run: Run) -> None:
        world.assert_laws()
        taken = run.value("A")
        assert len(taken) <= 1
        assert world.key_load("k") == len(taken)
        assert sorted(taken + drain("work")) == sorted(made.jobs)

    director.explore(prepare, first, lambda made: world.complete(made.more[0]), check)


CHANGES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {"concurrency_key": "k"}),
    ({"concurrency_key": "other"}, {"concurrency_key": "k"}),
    ({"concurrency_key": "other"}, {}),
    ({}, {"requires": "gpu"}),
    ({"concurrency_key": "other"}, {"requires": "gpu", "concurrency_key": "other"}),
    ({}, {"queue_name": "narrow"}),
    ({"queue_name": "elsewhere"}, {"queue_name": "narrow"}),
]


@pytest.mark.parametrize(("before", "after"), CHANGES)
def test_a_claim_never_takes_a_job_as_it_was_before_a_replacement(
    director: Director, before: dict[str, Any], after: dict[str, Any]
) -> None:
    """A debounced job may move to another key, queue or requirement after it was picked."""

    def prepare() -> Race:
        world.empty_tables()
        limit_queue("narrow", 1)
        holder = world.running(concurrency_key="k", queue_name="narrow")
        job = world.enqueue(idempotency_key="i", **before)
        # Something with a key must wait, or else claims take the short way.
        world.enqueue(concurrency_key="k")
        return Race([job], world.claims("work"), world.claims("work"), [holder])

    def replace(made: Race) -> None:
        new = world.new_job(idempotency_key="i", on_duplicate=OnDuplicate.REPLACE, **after)
        store.enqueue(store.connection(), new)

    def check(made: Race, run: Run) -> None:
        world.assert_laws()
        assert world.key_load("k") == 1
        taken = run.value("A")
        job = world.job(made.jobs[0])
        assert job.requires is None or job.pk not in taken

    director.explore(prepare, first, replace, check)


def test_a_claim_and_a_cancel_agree_whose_the_job_is(director: Director) -> None:
    def check(made: Race, run: Run) -> None:
        world.assert_laws()
        ((change,), _queues) = run.value("B")
        taken = run.value("A") == made.jobs
        assert world.statuses(made.jobs) == ["RUNNING" if taken else "CANCELLED"]
        assert change.status == ("RUNNING" if taken else "CANCELLED")

    def check_either(made: Race, run: Run) -> None:
        check(made, run)

    for job in ({}, {"concurrency_key": "k"}):
        director.explore(
            lambda job=job: race(job), first, lambda made: world.cancel(*made.jobs), check_either
        )


def test_a_claim_beside_run_now(director: Director) -> None:
    def prepare() -> Race:
        return race({"delay": world.WEEK}, {"delay": world.WEEK, "concurrency_key": "k"})

    def check(made: Race, run: Run) -> None:
        world.assert_laws()
        assert len(run.value("B")) == 2
        assert sorted(run.value("A") + drain("work")) == sorted(made.jobs)

    director.explore(
        prepare, first, lambda made: store.run_now(store.connection(), made.jobs), check
    )


def test_a_claim_beside_rescue_and_return(director: Director) -> None:
    def prepare() -> Race:
        world.empty_tables()
        lapsed = world.running(concurrency_key="k")
        given = world.running()
        world.lapse(lapsed[0])
        return Race([lapsed[0], given[0]], world.claims("work"), world.claims("work"), [given])

    def put_back(made: Race) -> None:
        store.rescue(store.connection(), world.KEEP)
        store.release(store.connection(), made.more, keep=world.KEEP)

    def check(made: Race, run: Run) -> None:
        world.assert_laws()
        assert sorted(run.value("A") + drain("work")) == sorted(made.jobs)
        assert [world.job(job).attempt for job in made.jobs] == [2, 1]

    def look_and_claim(made: Race) -> list[UUID]:
        made.first.look(store.connection())
        return first(made)

    director.explore(prepare, look_and_claim, put_back, check)
