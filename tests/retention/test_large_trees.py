"""Sweeps of trees of any size: by rows, in pieces, and each pass in a time that they set."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from uuid import UUID

import pytest
from django.db import connection

from django_durable import store
from django_durable.models import Hold, Job, Step
from django_durable.store.sweeping import MOST_MEMBERS, sweep_these
from django_durable.uuid7 import uuid7
from tests.kernel import world

pytestmark = pytest.mark.django_db


def gone_trees(*children: int) -> list[UUID]:
    """Make ended trees of so many children each, whose time is over; the first the longest."""
    roots = [uuid7() for _ in children]
    ended = {"status": "SUCCESSFUL", "due_at": None, "finished_at": world.LONG_AGO, "lane": 0}
    jobs = []
    for number, (root, count) in enumerate(zip(roots, children, strict=True)):
        over = {**ended, "kept_until": world.LONG_AGO + timedelta(seconds=number), "root_id": root}
        jobs.append(Job(id=root, name="root", keep_for=world.WEEK, **over))
        jobs += [Job(name="leaf", parent_id=root, depth=1, **over) for _ in range(count)]
    Job.all_objects.bulk_create(jobs)
    return roots


def batches(most: int, position: store.Position | None = None) -> Iterator[int]:
    """Sweep once through all, and tell how many jobs each batch has deleted."""
    position, more = position or store.Position(), True
    while more:
        swept = store.sweep(connection, position, most=most)
        more = swept.more
        if swept.deleted:
            yield swept.deleted


def test_a_batch_is_bounded_by_rows_whatever_trees_they_are_of() -> None:
    gone_trees(0, 7, 3, 0, 8, 2, 0, 0)
    assert list(batches(10)) == [1 + 8 + 4 + 1, 9 + 3 + 1 + 1]
    assert not Job.all_objects.exists()


def test_a_tree_larger_than_a_batch_goes_in_pieces_and_its_root_last() -> None:
    _before, large, _after = gone_trees(2, 25, 1)
    sizes = []
    for size in batches(10):
        sizes.append(size)
        # What is left can't be seen, and can be swept: its root is there.
        assert not Job.objects.exists()
        assert Job.all_objects.filter(pk=large).exists() or len(sizes) == 4
    assert sizes == [3, 10, 10, 6 + 2]
    assert not Job.all_objects.exists()


def test_a_tree_of_which_a_piece_is_gone_is_swept_by_whoever_comes_next() -> None:
    (large,) = gone_trees(25)
    next(batches(10))
    assert Job.all_objects.filter(pk=large).exists()
    assert not Job.objects.exists()
    assert sum(batches(10)) == 26 - 10


@pytest.mark.parametrize("why", ["awaited", "lives", "not settled"])
def test_no_piece_goes_of_a_large_tree_that_may_not_go(why: str) -> None:
    (large,) = gone_trees(25)
    member = Job.all_objects.filter(parent=large).latest("pk")
    if why == "awaited":
        Hold.objects.create(waiter_id=world.running("waiter")[0], awaited_id=large)
    elif why == "lives":
        Job.all_objects.filter(pk=member.pk).update(
            status="READY", due_at=world.NEVER, finished_at=None, kept_until=None
        )
    else:
        Job.all_objects.filter(pk=member.pk).update(kept_until=world.NEVER)
    behind = gone_trees(0)
    assert list(batches(10)) == [1]
    assert Job.all_objects.filter(root=large).count() == 26
    assert not Job.all_objects.filter(pk__in=behind).exists()


def test_a_large_tree_goes_though_a_member_was_passed_by_as_it_ended() -> None:
    gone_trees(25)
    Job.all_objects.filter(pk=Job.all_objects.latest("pk").pk).update(kept_until=None)
    assert sum(batches(10)) == 26


def test_a_tree_that_is_not_kept_at_all_is_left_to_the_sweep_if_it_is_large() -> None:
    (large,) = gone_trees(MOST_MEMBERS + 1)
    sweep_these(connection, [large])
    assert Job.all_objects.count() == MOST_MEMBERS + 2
    assert sum(batches(MOST_MEMBERS)) == MOST_MEMBERS + 2


def test_what_belongs_to_the_members_of_a_large_tree_goes_with_them() -> None:
    gone_trees(25)
    for job in Job.all_objects.all():
        Step.objects.create(
            job=job, kind="step", name="s", ordinal=0, status="succeeded", started_at=world.NEVER
        )
    list(batches(10))
    assert not Step.objects.exists()


def test_a_pass_begins_where_the_one_before_has_come_to_and_now_and_then_anew() -> None:
    """Or every sweep would look again at all that others have left."""
    waiter = world.running("waiter")
    (held,) = gone_trees(0)
    hold = Hold.objects.create(waiter_id=waiter[0], awaited_id=held)
    position = store.Position()
    assert list(batches(10, position)) == []
    hold.delete()
    assert list(batches(10, position)) == []
    (new,) = gone_trees(0)
    Job.all_objects.filter(pk=new).update(kept_until=store.now(connection))
    assert list(batches(10, position)) == [1]
    position.revisit_at = 0.0
    assert list(batches(10, position)) == [1]
    assert not Job.all_objects.filter(pk=held).exists()
