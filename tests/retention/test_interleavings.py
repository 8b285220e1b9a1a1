"""Sweeps beside replays and awaits, and ends of trees: in every order of their statements."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from django.db import transaction

from django_durable import OnDuplicate, faults, store
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
    """Do one batch in the midst of a sweep through this status, in one transaction."""
    position = store.Position(FINISHED.index(JobStatus(status)), is_passing=True)
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
        return right[0]

    def pass_and_sweep(dead: UUID) -> int:
        faults.reach("time passes")
        let_pass(dead)
        return sweep("DEAD")

    def replay(dead: UUID) -> Any:
        letter = DeadLetter.all_objects.filter(job=dead).first()
        return letter and store.replay(store.connection(), letter.pk).id

    def check(dead: UUID, run: Run) -> None:
        world.assert_laws()
        swept, new = run.value("A"), run.value("B")
        assert swept == (0 if Job.all_objects.filter(pk=dead).exists() else 1)
        if new is None:
            assert not DeadLetter.objects.exists()
        else:
            assert world.job(new).idempotency_key == "key"

    runs = director.explore(prepare, pass_and_sweep, replay, check)
    assert {run.value("B") is None for run in runs} == {True, False}


def hold(waiter: store.Right, awaited: UUID) -> bool:
    """Begin to await a job of another tree; return whether it is there and kept from now on."""
    return awaited in store.hold_awaited(store.connection(), waiter[0], [awaited])


@dataclass
class Awaiting:
    awaited: store.Right
    waiter: store.Right


def reads_as_kept(job: UUID) -> bool:
    return bool(Job.objects.filter(pk=job).exists())


def test_a_job_that_is_awaited_is_gone_before_or_stays(director: Director) -> None:  # noqa: F811
    """The job's time passes in the midst: after the look of whoever awaits it, before the sweep."""

    def prepare() -> Awaiting:
        world.empty_tables()
        right = world.running("awaited")
        world.complete(right)
        return Awaiting(right, world.running("waiter"))

    def pass_and_sweep(made: Awaiting) -> int:
        faults.reach("time passes")
        let_pass(made.awaited[0])
        return sweep("SUCCESSFUL")

    def check(made: Awaiting, run: Run) -> None:
        world.assert_laws()
        assert reads_as_kept(made.awaited[0]) == run.value("B")
        assert Hold.objects.exists() == run.value("B")
        if run.value("B"):
            assert sweep_all() == 0
            world.complete(made.waiter)
            assert not reads_as_kept(made.awaited[0])
        sweep_all()
        assert not Job.all_objects.filter(pk=made.awaited[0]).exists()

    runs = director.explore(
        prepare, pass_and_sweep, lambda made: hold(made.waiter, made.awaited[0]), check
    )
    assert {(run.value("A"), run.value("B")) for run in runs} >= {(0, True), (1, False)}


def test_a_job_that_is_awaited_beside_its_end_is_gone_before_or_stays(
    director: Director,  # noqa: F811
) -> None:
    """One that is not kept at all is deleted as it ends, unless somebody awaits it already."""

    def prepare() -> Awaiting:
        world.empty_tables()
        return Awaiting(world.running("awaited"), world.running("waiter"))

    def end(made: Awaiting) -> None:
        store.record_successes(store.connection(), [store.Success(made.awaited, "7", timedelta(0))])

    def park(made: Awaiting) -> bool:
        """Do what `gather` does."""
        if not hold(made.waiter, made.awaited[0]):
            return False
        store.park(store.connection(), made.waiter, awaited=[made.awaited[0]])
        return True

    def check(made: Awaiting, run: Run) -> None:
        world.assert_laws()
        assert reads_as_kept(made.awaited[0]) == run.value("B")
        assert world.job(made.waiter[0]).status == ("READY" if run.value("B") else "RUNNING") or (
            # It had ended already, so that there was nothing to wait for.
            world.job(made.awaited[0]).is_finished
        )

    runs = director.explore(prepare, end, park, check)
    assert {run.value("B") for run in runs} == {True, False}


def test_a_job_is_deleted_before_it_is_awaited_or_stays(director: Director) -> None:  # noqa: F811
    def prepare() -> Awaiting:
        world.empty_tables()
        right = world.running("awaited")
        world.complete(right)
        return Awaiting(right, world.running("waiter"))

    def delete(made: Awaiting) -> bool:
        with transaction.atomic():
            refused, _counts = store.delete_trees(store.connection(), [made.awaited[0]])
        return not refused

    def check(made: Awaiting, run: Run) -> None:
        world.assert_laws()
        assert run.value("A") != run.value("B")
        assert reads_as_kept(made.awaited[0]) == run.value("B")
        assert Hold.objects.exists() == run.value("B")

    runs = director.explore(prepare, delete, lambda made: hold(made.waiter, made.awaited[0]), check)
    assert {run.value("B") for run in runs} == {True, False}


@pytest.mark.parametrize("mode", [OnDuplicate.RETURN_EXISTING, OnDuplicate.NO_REUSE])
def test_a_key_is_free_before_its_job_is_awaited_or_stays_taken(
    director: Director,  # noqa: F811
    mode: OnDuplicate,
) -> None:
    def prepare() -> Awaiting:
        world.empty_tables()
        right = world.running("awaited", idempotency_key="key")
        world.complete(right)
        return Awaiting(right, world.running("waiter"))

    def pass_and_enqueue(made: Awaiting) -> store.Enqueued:
        faults.reach("time passes")
        let_pass(made.awaited[0])
        new = world.new_job("awaited", idempotency_key="key", on_duplicate=mode)
        return store.enqueue(store.connection(), new)

    def check(made: Awaiting, run: Run) -> None:
        world.assert_laws()
        old, new, held = made.awaited[0], run.value("A"), run.value("B")
        holder = Job.all_objects.get(idempotency_key="key").pk
        # Never both: kept for its waiter, and another job with its key.
        assert new.created != held
        assert (new.id == old) == held == (holder == old)
        assert reads_as_kept(old) == held

    runs = director.explore(
        prepare, pass_and_enqueue, lambda made: hold(made.waiter, made.awaited[0]), check
    )
    assert {run.value("B") for run in runs} == {True, False}


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


def test_a_member_that_somebody_held_as_its_tree_ended_reads_as_gone_with_it(
    director: Director,  # noqa: F811
) -> None:
    """Whoever ends the tree does not wait for him; a sweep settles the member before its time."""

    def prepare() -> Tree:
        made = tree(2)
        world.complete(*made.children)
        return made

    def hold_child(made: Tree) -> None:
        with transaction.atomic():
            Job.all_objects.select_for_update().get(pk=made.children[0][0])
            faults.reach("held")

    def check(made: Tree, run: Run) -> None:
        (root, *_children) = jobs = [made.root, *made.children]
        until = world.job(root[0]).kept_until
        assert until is not None
        passed_by.append(world.job(made.children[0][0]).kept_until is None)
        # Half a minute before the end of its time a sweep comes by.
        Job.all_objects.filter(kept_until=until).update(kept_until=soon())
        assert sweep_all() == 0
        assert {world.job(job[0]).kept_until for job in jobs} == {world.job(root[0]).kept_until}

    def soon() -> datetime:
        return store.now(store.connection()) + timedelta(seconds=30)

    passed_by: list[bool] = []
    director.explore(prepare, lambda made: world.complete(made.root), hold_child, check)
    assert set(passed_by) == {True, False}
