"""Until when jobs are kept, what reads as gone, and what sweeps delete."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection
from django.db.models import ProtectedError
from django.test import override_settings

from django_durable import DurableError, OnDuplicate, job, operations, store, workflow
from django_durable.inspection import problems
from django_durable.jobtypes import JobType
from django_durable.models import Attempt, DeadLetter, Hold, Job, Step
from tests.contract.conftest import _forget_job_types, advance  # noqa: F401 - fixtures
from tests.contract.running import Runner
from tests.kernel import world

pytestmark = pytest.mark.django_db

HOUR, DAY = timedelta(hours=1), timedelta(days=1)


def run_all(*job_types: JobType) -> None:
    """Run what is due until nothing is."""
    runner = Runner(*job_types)
    while claims := runner.claim():
        for claim in claims:
            runner.record(runner.execute(claim))


@pytest.fixture
def leaf() -> JobType:
    @job(name="kept.leaf", keep_completed=5 * DAY, max_attempts=1, keep_dead=6 * DAY)
    def leaf(fail: bool = False) -> str:
        if fail:
            raise ValueError("no")
        return "leaf"

    return leaf


def tree_of(*job_types: JobType, **options: Any) -> JobType:
    @workflow(name="kept.tree", **options)
    def tree(context: Any, wait: bool = True, fail: bool = False) -> Any:
        children = [context.start(f"c-{i}", kind) for i, kind in enumerate(job_types)]
        if wait:
            context.gather(children)
        if fail:
            raise ValueError("no")

    return tree


def kept(each: Job) -> Any:
    each.refresh_from_db()
    return each.kept_until


def test_a_tree_is_kept_by_its_roots_type_from_the_end_of_its_last_job(leaf: JobType) -> None:
    tree = tree_of(leaf, leaf, keep_completed=2 * DAY)
    root = tree.enqueue()
    Runner(tree).run()
    Runner(leaf).run(1)
    assert [one.kept_until for one in Job.all_objects.all()] == [None] * 3
    run_all(tree, leaf)
    root.refresh_from_db()
    assert {one.kept_until for one in Job.all_objects.all()} == {root.finished_at + 2 * DAY}


def test_a_root_that_ends_before_its_children_is_kept_from_their_end_on(leaf: JobType) -> None:
    tree = tree_of(leaf, leaf, keep_completed=2 * DAY)
    root = tree.enqueue(wait=False)
    Runner(tree).run()
    root.refresh_from_db()
    assert (root.status, root.kept_until) == ("SUCCESSFUL", None)
    Runner(leaf).run(1)
    assert kept(root) is None
    Runner(leaf).run(1)
    last = Job.all_objects.filter(name="kept.leaf").latest("finished_at").finished_at
    assert kept(root) == last + 2 * DAY
    assert {one.kept_until for one in Job.all_objects.all()} == {root.kept_until}


@pytest.mark.parametrize(("fail", "expected"), [(True, 4 * DAY), (False, 2 * DAY)])
def test_the_roots_status_chooses_the_clock(leaf: JobType, fail: bool, expected: Any) -> None:
    tree = tree_of(leaf, keep_completed=2 * DAY, keep_dead=4 * DAY, max_attempts=1)
    root = tree.enqueue(fail=fail)
    run_all(tree, leaf)
    root.refresh_from_db()
    assert root.kept_until - root.finished_at == expected


@pytest.mark.parametrize("keep", [90 * DAY, HOUR, None])
@pytest.mark.parametrize("ended", [True, False])
def test_who_knows_the_type_says_how_long_a_dead_job_is_kept(keep: Any, ended: bool) -> None:
    """Who has recorded its death, as a rescue from another fleet, may not have known it."""
    root = world.running("only.there")
    child = world.new_job("leaf")
    ids = {"parent": root[0], "root": root[0], "epoch": root[1]}
    store.bear_many(connection, [child], **ids)
    store.record_failure(connection, world.failure(root, retryable=False), world.KEEP)
    if ended:
        (claim,) = world.claim("leaf")
        world.complete((claim.id, claim.epoch))
    known = store.Keep(world.WEEK, world.WEEK, {}, {"only.there": keep})
    store.keep_dead(connection, [DeadLetter.objects.get().pk], known)
    if not ended:
        assert kept(world.job(root[0])) is None
        (claim,) = world.claim("leaf")
        world.complete((claim.id, claim.epoch))
    last = max(job.finished_at for job in Job.all_objects.all())
    until = None if keep is None else last + keep
    assert {job.kept_until for job in Job.all_objects.all()} == {until}


def test_who_knows_the_type_takes_nothing_back_that_is_gone() -> None:
    right = world.running("only.there")
    store.record_failure(connection, world.failure(right, retryable=False), world.KEEP)
    Job.all_objects.update(kept_until=world.LONG_AGO)
    known = store.Keep(world.WEEK, None, {}, {})
    store.keep_dead(connection, [DeadLetter.all_objects.get().pk], known)
    assert world.job(right[0]).kept_until == world.LONG_AGO


def test_a_dead_child_goes_by_the_clock_of_its_root(leaf: JobType) -> None:
    @workflow(name="kept.tree", keep_completed=2 * DAY)
    def tree(context: Any) -> None:
        context.gather([context.start("c", leaf, True)], return_exceptions=True)

    root = tree.enqueue()
    run_all(tree, leaf)
    root.refresh_from_db()
    dead = Job.all_objects.get(status="DEAD")
    assert dead.kept_until == root.kept_until == root.finished_at + 2 * DAY


def test_a_cancelled_tree_is_kept_like_a_completed_one_once_all_have_ended(leaf: JobType) -> None:
    tree = tree_of(leaf, leaf, keep_completed=2 * DAY)
    root = tree.enqueue()
    Runner(tree).run()
    runner = Runner(leaf)
    (claim,) = runner.claim(1)
    root.cancel()
    assert kept(root) is None
    runner.record(runner.execute(claim))
    last = Job.all_objects.get(pk=claim.id).finished_at
    assert last is not None
    assert {one.kept_until for one in Job.all_objects.all()} == {last + 2 * DAY}


def test_a_tree_for_ever_is_kept_for_ever(leaf: JobType, advance: Any) -> None:  # noqa: F811
    tree = tree_of(leaf, keep_completed=None)
    tree.enqueue()
    run_all(tree, leaf)
    advance(10000 * DAY)
    assert operations.prune() == 0
    assert Job.objects.count() == 2


def test_a_tree_that_is_not_kept_is_deleted_at_once(leaf: JobType) -> None:
    tree = tree_of(leaf, keep_completed=timedelta(0))
    tree.enqueue()
    run_all(tree, leaf)
    assert not Job.all_objects.exists()
    assert not Step.objects.exists()


def test_a_child_that_is_not_kept_is_there_until_its_tree_goes() -> None:
    @job(name="kept.leaf", keep_completed=timedelta(0))
    def leaf() -> int:
        return 7

    @workflow(name="kept.root")
    def tree(context: Any) -> Any:
        return context.call("c", leaf)

    root = tree.enqueue()
    run_all(tree, leaf)
    root.refresh_from_db()
    assert (root.status, root.return_value) == ("SUCCESSFUL", 7)
    assert Job.objects.count() == 2


def test_records_read_as_gone_from_the_instant_on_swept_or_not(
    leaf: JobType,
    advance: Any,  # noqa: F811
) -> None:
    done = leaf.using(idempotency_key="once").enqueue()
    run_all(leaf)
    advance(5 * DAY - HOUR)
    assert done.result() == "leaf"
    assert not leaf.using(idempotency_key="once").enqueue().created
    advance(HOUR)
    assert not Job.objects.exists()
    assert Job.all_objects.get() == done
    with pytest.raises(Job.DoesNotExist):
        done.result()
    new = leaf.using(idempotency_key="once", on_duplicate=OnDuplicate.NO_REUSE).enqueue()
    assert new.created
    assert operations.prune() == 1
    assert Job.all_objects.get() == new


def test_a_sweep_takes_all_that_belongs_to_a_tree(
    leaf: JobType,
    advance: Any,  # noqa: F811
) -> None:
    tree = tree_of(leaf, keep_completed=DAY, keep_dead=DAY, max_attempts=1)
    tree.enqueue(fail=True)
    run_all(tree, leaf)
    DeadLetter.objects.get().replay()
    assert Step.objects.exists()
    assert Attempt.objects.exists()
    advance(DAY)
    assert operations.prune() == 2
    (replay,) = Job.all_objects.all()
    assert replay.status == "READY"
    assert not DeadLetter.objects.exists()
    assert not Attempt.objects.exists()


def test_what_is_gone_is_neither_replayed_nor_forked_nor_counted(
    leaf: JobType,
    advance: Any,  # noqa: F811
) -> None:
    dead = leaf.enqueue(True)
    run_all(leaf)
    letter = DeadLetter.objects.get()
    assert problems(min_workers=0, max_dead=0)
    advance(6 * DAY)
    assert not DeadLetter.objects.exists()
    assert DeadLetter.objects.all().replay() == []
    assert problems(min_workers=0, max_dead=0) == []
    with pytest.raises(DeadLetter.DoesNotExist):
        letter.replay()
    with pytest.raises(Job.DoesNotExist):
        dead.fork()
    assert DeadLetter.all_objects.get() == letter
    assert Job.all_objects.get() == dead


def test_the_replay_may_go_before_the_dead_letter_that_names_it(
    leaf: JobType,
    advance: Any,  # noqa: F811
) -> None:
    leaf.enqueue(True)
    run_all(leaf)
    letter = DeadLetter.objects.get()
    letter.replay(args=[False])
    run_all(leaf)
    advance(5 * DAY)
    assert operations.prune() == 1
    letter.refresh_from_db()
    assert letter.replayed_at is not None
    assert letter.replayed_as is None


def test_what_a_live_job_has_awaited_stays_until_that_has_ended(advance: Any) -> None:  # noqa: F811
    @job(name="kept.foreign", keep_completed=timedelta(0))
    def foreign() -> int:
        return 7

    @workflow(name="kept.waiter", timeout=None)
    def waiter(context: Any, other: str) -> int:
        value: int = Job.all_objects.get(pk=other).result()
        context.sleep("long", 3 * DAY)
        again: int = Job.all_objects.get(pk=other).result()
        return value + again

    awaited = foreign.enqueue()
    root = waiter.enqueue(str(awaited.pk))
    Runner(waiter).run()
    run_all(foreign)
    assert Job.objects.get(pk=awaited.pk).is_finished
    run_all(waiter)
    assert operations.prune() == 0
    advance(3 * DAY)
    run_all(waiter)
    root.refresh_from_db()
    assert (root.status, root.return_value) == ("SUCCESSFUL", 14)
    assert operations.prune() == 1
    assert not Hold.objects.exists()
    assert Job.all_objects.get() == root


def test_what_had_ended_when_it_was_awaited_stays_too(advance: Any) -> None:  # noqa: F811
    @job(name="kept.foreign", keep_completed=HOUR)
    def foreign() -> int:
        return 7

    @workflow(name="kept.waiter", timeout=None)
    def waiter(context: Any, other: str) -> int:
        value: int = Job.all_objects.get(pk=other).result()
        context.sleep("long", 3 * DAY)
        return value

    awaited = foreign.enqueue()
    run_all(foreign)
    root = waiter.enqueue(str(awaited.pk))
    run_all(waiter)
    advance(2 * DAY)
    assert operations.prune() == 0
    advance(DAY)
    run_all(waiter)
    root.refresh_from_db()
    assert (root.status, root.return_value) == ("SUCCESSFUL", 7)
    assert operations.prune() == 1


def test_what_a_live_job_has_awaited_reads_as_kept_and_keeps_its_key(
    advance: Any,  # noqa: F811
) -> None:
    """As it is found by id or by key, so that every later run of the waiter finds the same."""
    runs: list[int] = []

    @job(name="kept.foreign", keep_completed=HOUR)
    def foreign() -> int:
        runs.append(1)
        return len(runs)

    @workflow(name="kept.waiter", timeout=None)
    def waiter(context: Any, other: str) -> Any:
        by_id = Job.objects.get(pk=other).result()
        by_key = foreign.using(idempotency_key="key").enqueue().result()
        context.sleep("long", DAY)
        return [by_id, by_key]

    awaited = foreign.enqueue()
    root = waiter.enqueue(str(awaited.pk))
    run_all(waiter, foreign)
    advance(2 * HOUR)
    keyed = Job.objects.by_key(foreign, "key").get()
    assert not foreign.using(idempotency_key="key").enqueue().created
    assert keyed.result() == 2
    out = StringIO()
    call_command("durable", "jobs", "--json", stdout=out)
    assert {each["id"] for each in json.loads(out.getvalue())} == {
        str(each.pk) for each in (awaited, keyed, root)
    }
    out = StringIO()
    call_command("durable", "status", "--json", stdout=out)
    assert json.loads(out.getvalue())["jobs"]["SUCCESSFUL"] == 2
    assert run("--dry-run")["deleted"] == 0
    advance(DAY)
    run_all(waiter, foreign)
    root.refresh_from_db()
    assert (root.status, root.return_value) == ("SUCCESSFUL", [1, 2])
    assert not Job.objects.filter(pk__in=[awaited.pk, keyed.pk]).exists()
    assert run("--dry-run")["deleted"] == 2
    assert foreign.using(idempotency_key="key").enqueue().created


def test_what_is_not_kept_is_kept_for_who_awaits_it() -> None:
    runs: list[int] = []

    @job(name="kept.foreign", keep_completed=timedelta(0))
    def foreign() -> int:
        runs.append(1)
        return 7

    @workflow(name="kept.waiter")
    def waiter(context: Any) -> int:
        value: int = foreign.using(idempotency_key="key").enqueue().result()
        return value

    root = waiter.enqueue()
    run_all(waiter, foreign)
    root.refresh_from_db()
    assert (root.status, root.return_value, runs) == ("SUCCESSFUL", 7, [1])
    assert Job.objects.get() == root


def test_no_row_pays_for_what_is_kept_for_others_but_those_whose_time_is_over(
    leaf: JobType,
) -> None:
    """Or the planner would take each list of jobs for an expensive one."""
    leaf.enqueue_many([((), {})] * 500)

    def cost(jobs: Any) -> float:
        with connection.cursor() as cursor:
            cursor.execute("ANALYZE durable_job")
        return float(re.findall(r"cost=\S+\.\.(\S+)", jobs.explain())[0])

    assert cost(Job.objects.all()) < 2 * cost(Job.all_objects.all())


def test_a_whole_tree_is_kept_for_who_awaits_one_of_it(
    leaf: JobType,
    advance: Any,  # noqa: F811
) -> None:
    tree = tree_of(leaf, keep_completed=HOUR)
    top = tree.enqueue()
    run_all(tree, leaf)
    child = Job.objects.get(parent=top)

    @workflow(name="kept.waiter", timeout=None)
    def waiter(context: Any) -> Any:
        value = Job.objects.get(pk=child.pk).result()
        context.sleep("long", DAY)
        return value

    root = waiter.enqueue()
    run_all(waiter)
    advance(2 * HOUR)
    assert set(Job.objects.all()) == {top, child, root}
    assert operations.prune() == 0
    advance(DAY)
    run_all(waiter)
    root.refresh_from_db()
    assert root.return_value == "leaf"
    assert operations.prune() == 2


def test_what_a_live_job_has_awaited_is_not_deleted(leaf: JobType) -> None:
    tree = tree_of(leaf)
    top = tree.enqueue()
    run_all(tree, leaf)

    @workflow(name="kept.waiter", timeout=None)
    def waiter(context: Any) -> None:
        Job.objects.get(parent=top).result()
        context.sleep("long", DAY)

    root = waiter.enqueue()
    run_all(waiter)
    with pytest.raises(ProtectedError, match="no live job has awaited") as refused:
        top.delete()
    assert refused.value.protected_objects == {top}
    assert Job.objects.count() == 3
    root.cancel()
    top.delete()
    assert Job.objects.get() == root


def test_what_is_gone_can_be_awaited_no_more(advance: Any, leaf: JobType) -> None:  # noqa: F811
    @workflow(name="kept.waiter", max_attempts=1)
    def waiter(context: Any, other: str) -> Any:
        return Job.all_objects.get(pk=other).result()

    awaited = leaf.enqueue()
    run_all(leaf)
    advance(5 * DAY)
    root = waiter.enqueue(str(awaited.pk))
    run_all(waiter)
    root.refresh_from_db()
    assert root.dead_letter.error_class == "django_durable.models.Job.DoesNotExist"
    assert operations.prune() == 1


@override_settings(DURABLE_DROP_COMPLETED_PAYLOADS=True)
def test_completed_records_can_drop_their_arguments_and_dead_ones_keep_them() -> None:
    @job(name="kept.secret", max_attempts=1)
    def secret(card: str, *, fail: bool = False) -> str:
        if fail:
            raise ValueError("no")
        return "charged"

    done, dead = secret.enqueue("4711"), secret.enqueue("4711", fail=True)
    run_all(secret)
    done.refresh_from_db()
    dead.refresh_from_db()
    assert (done.args, done.kwargs, done.return_value) == ([], {}, "charged")
    assert (dead.args, dead.kwargs) == (["4711"], {"fail": True})


@override_settings(DURABLE_DROP_COMPLETED_PAYLOADS=True)
def test_a_fork_of_what_has_dropped_its_arguments_has_to_be_given_them() -> None:
    seen: list[Any] = []

    @job(name="kept.secret", max_attempts=1)
    def secret(card: str = "none") -> None:
        seen.append(card)

    done, bare = secret.enqueue("4711"), secret.enqueue()
    run_all(secret)
    done.refresh_from_db()
    bare.refresh_from_db()
    for given in ({}, {"args": ["4711"]}, {"kwargs": {}}):
        with pytest.raises(DurableError, match="were dropped"):
            done.fork(**given)
    new = done.fork(args=["4712"], kwargs={})
    bare.fork()
    run_all(secret)
    assert sorted(seen) == ["4711", "4712", "none", "none"]
    # It had its own arguments to the end, and these are gone again.
    with pytest.raises(DurableError, match="were dropped"):
        Job.objects.get(pk=new.pk).fork()


def run(*flags: str) -> Any:
    out = StringIO()
    call_command("durable", "prune", *flags, "--json", stdout=out)
    return json.loads(out.getvalue())


def test_prune_counts_or_deletes_what_is_gone(
    leaf: JobType,
    advance: Any,  # noqa: F811
) -> None:
    leaf.enqueue_many([((), {})] * 7)
    run_all(leaf)
    assert run("--dry-run")["deleted"] == 0
    advance(5 * DAY)
    leaf.enqueue()
    assert run("--dry-run")["deleted"] == 7
    out = StringIO()
    call_command("durable", "prune", "--dry-run", stdout=out, no_color=True)
    assert out.getvalue() == "7 jobs would be deleted.\n"
    assert Job.all_objects.count() == 8
    assert run()["deleted"] == 7
    assert Job.all_objects.count() == 1
    assert run()["deleted"] == 0


def test_prune_counts_a_member_that_was_passed_by_as_its_tree_ended(
    leaf: JobType,
    advance: Any,  # noqa: F811
) -> None:
    tree = tree_of(leaf, leaf, keep_completed=HOUR)
    root = tree.enqueue()
    run_all(tree, leaf)
    child = Job.objects.filter(parent=root).earliest("pk")
    Job.objects.filter(pk=child.pk).update(kept_until=None)
    advance(HOUR)
    assert run("--dry-run")["deleted"] == run()["deleted"] == 3


def test_a_sweep_settles_a_member_that_was_passed_by_before_its_trees_time_is_over(
    leaf: JobType,
    advance: Any,  # noqa: F811
) -> None:
    tree = tree_of(leaf, leaf, keep_completed=HOUR)
    root = tree.enqueue()
    run_all(tree, leaf)
    child = Job.objects.filter(parent=root).earliest("pk")
    Job.objects.filter(pk=child.pk).update(kept_until=None)
    advance(HOUR - timedelta(seconds=30))
    assert operations.prune() == 0
    assert kept(child) == kept(root)
    advance(timedelta(seconds=30))
    assert not Job.objects.exists()


def test_a_sweep_passes_what_is_kept_for_others_and_comes_to_all_the_rest(
    leaf: JobType,
    advance: Any,  # noqa: F811
) -> None:
    """Those at the head must not hold up the ones behind."""
    leaf.enqueue_many([((), {})] * 30)
    run_all(leaf)
    waiter = leaf.enqueue()
    held = list(Job.all_objects.exclude(pk=waiter.pk).order_by("kept_until")[:12])
    Hold.objects.bulk_create(Hold(waiter=waiter, awaited=one) for one in held)
    advance(5 * DAY)
    position, deleted, more = store.Position(), 0, True
    while more:
        swept = store.sweep(connection, position, limit=5)
        deleted, more = deleted + swept.deleted, swept.more
    assert deleted == 18
    assert set(Job.all_objects.all()) == {waiter, *held}


def test_a_record_that_a_foreign_key_of_a_user_points_to_stays_and_the_others_go(
    leaf: JobType,
) -> None:
    held, *others = [leaf.enqueue() for _ in range(5)]
    run_all(leaf)
    Job.objects.update(kept_until="2020-01-01T00:00Z")
    with connection.cursor() as cursor:
        cursor.execute(
            "CREATE TABLE own (job_id uuid REFERENCES durable_job DEFERRABLE INITIALLY DEFERRED)"
        )
        cursor.execute("INSERT INTO own VALUES (%s)", [held.pk])
    assert operations.prune() == len(others)
    assert Job.all_objects.get() == held
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM own")
    assert operations.prune() == 1
