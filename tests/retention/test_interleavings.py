"""Sweeps beside replays and awaits, and ends of trees: in every order of their statements."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

import pytest

from django_durable import store
from django_durable.choices import FINISHED, JobStatus
from django_durable.models import DeadLetter, Hold, Job
from tests.kernel import world
from tests.kernel.conftest import director  # noqa: F401 - a fixture
from tests.kernel.interleaving import Director, Run


def sweep_all() -> int:
    """Sweep once through all statuses; return how many jobs were deleted."""
    position, deleted, more = store.Position(), 0, True
    while more:
        swept = store.sweep(store.connection(), position)
        deleted, more = deleted + swept.deleted, swept.more
    return deleted


def sweep(status: str) -> int:
    """Do one batch of a sweep through this status, in one transaction."""
    position = store.Position(FINISHED.index(JobStatus(status)))
    return store.sweep(store.connection(), position, alone=False).deleted


def let_pass(job: UUID) -> None:
    """Let the time of this job be over."""
    Job.all_objects.filter(pk=job).update(kept_until=world.LONG_AGO)


@dataclass
class Tree:
    root: store.Right
    children: list[store.Right]


def tree(children: int) -> Tree:
    world.empty_tables()
    root = world.running("parent")
    claim = store.Claims(store.Scope(frozenset(["child"])), world.owner())
    for _ in range(children):
        (born,) = store.bear_many(
            store.connection(),
            [world.new_job("child")],
            parent=root[0],
            root=root[0],
            epoch=root[1],
        )
        assert born is not None
    claim.look(store.connection())
    taken = claim.claim(store.connection(), children)
    return Tree(root, [(one.id, one.epoch) for one in taken])


@pytest.mark.parametrize("how", ["root and child", "two children"])
def test_the_last_of_two_that_end_at_once_says_until_when_the_tree_is_kept(
    director: Director,  # noqa: F811
    how: str,
) -> None:
    def prepare() -> Tree:
        made = tree(2)
        if how == "two children":
            world.complete(made.root)
        else:
            world.complete(made.children[1])
        return made

    def check(made: Tree, run: Run) -> None:
        world.assert_laws()
        jobs = [world.job(right[0]) for right in (made.root, *made.children)]
        assert {job.status for job in jobs} == {"SUCCESSFUL"}
        (kept,) = {job.kept_until for job in jobs}
        assert kept == max(job.finished_at for job in jobs if job.finished_at) + world.WEEK

    other = (lambda made: made.root) if how == "root and child" else (lambda made: made.children[1])
    director.explore(
        prepare,
        lambda made: world.complete(made.children[0]),
        lambda made: world.complete(other(made)),
        check,
    )


def test_a_dead_job_is_replayed_or_swept_and_never_both(director: Director) -> None:  # noqa: F811
    def prepare() -> UUID:
        world.empty_tables()
        right = world.running("work", idempotency_key="key")
        store.record_failure(store.connection(), world.failure(right, retryable=False), world.KEEP)
        let_pass(right[0])
        return right[0]

    def replay(dead: UUID) -> Any:
        letter = DeadLetter.objects.filter(job=dead).first()
        return letter and store.replay(store.connection(), letter.pk).id

    def check(dead: UUID, run: Run) -> None:
        world.assert_laws()
        swept, new = run.value("A"), run.value("B")
        assert swept == (0 if Job.all_objects.filter(pk=dead).exists() else 1)
        if new is None:
            assert swept == 1
        else:
            assert world.job(new).idempotency_key == "key"

    runs = director.explore(prepare, lambda _: sweep("DEAD"), replay, check)
    assert {run.value("B") is None for run in runs} == {True, False}


def test_a_job_that_is_awaited_is_gone_before_or_stays(director: Director) -> None:  # noqa: F811
    def prepare() -> tuple[UUID, store.Right]:
        world.empty_tables()
        right = world.running("awaited")
        world.complete(right)
        let_pass(right[0])
        return right[0], world.running("waiter")

    def park(made: Any) -> Any:
        return store.park(store.connection(), made[1], awaited=[made[0]])

    def check(made: Any, run: Run) -> None:
        world.assert_laws()
        assert run.value("B") is store.Parked.READY
        is_there = Job.all_objects.filter(pk=made[0]).exists()
        assert is_there == Hold.objects.filter(awaited=made[0]).exists()
        if is_there:
            assert sweep_all() == 0
            world.complete(made[1])
            assert sweep_all() == 1

    runs = director.explore(prepare, lambda _: sweep("SUCCESSFUL"), park, check)
    assert {run.value("A") for run in runs} == {0, 1}


def test_two_sweeps_delete_each_tree_once(director: Director) -> None:  # noqa: F811
    def prepare() -> None:
        made = tree(2)
        world.complete(made.root, *made.children)
        for right in (made.root, *made.children):
            let_pass(right[0])

    def check(_: None, run: Run) -> None:
        assert run.value("A") + run.value("B") + sweep_all() == 3
        assert not Job.all_objects.exists()

    director.explore(prepare, lambda _: sweep("SUCCESSFUL"), lambda _: sweep("SUCCESSFUL"), check)


def test_a_parent_that_ends_beside_the_birth_of_a_child_is_kept_for_it(
    director: Director,  # noqa: F811
) -> None:
    def prepare() -> store.Right:
        world.empty_tables()
        return world.running("parent")

    def birth(parent: store.Right) -> Any:
        return store.bear(
            store.connection(),
            world.new_job("child"),
            parent=parent[0],
            root=parent[0],
            epoch=parent[1],
        )

    def check(parent: store.Right, run: Run) -> None:
        world.assert_laws()
        born = run.value("B") is not None
        assert (world.job(parent[0]).kept_until is None) == born

    runs = director.explore(prepare, lambda parent: world.complete(parent), birth, check)
    assert {run.value("B") is None for run in runs} == {True, False}
