"""Idempotency keys, replays and deletions: whoever comes second finds what the first has done."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import pytest
from django.db import transaction

from django_durable import store
from django_durable.choices import LIVE, OnDuplicate
from django_durable.models import DeadLetter, Job
from django_durable.store import Enqueued
from tests.kernel import world
from tests.kernel.interleaving import Director, Run
from tests.kernel.jobs import keyed

KEY = "key"
MODES = list(OnDuplicate)
STATES = ["none", "READY", "DEAD", "gone"]
ALL_STATES = [*STATES, "RUNNING", "WAITING", "SUCCESSFUL", "CANCELLED"]


class RolledBackError(Exception):
    """End a caller's transaction."""


@dataclass
class Held:
    """Hold the job that had the key before, if any."""

    before: UUID | None
    state: str
    more: list[Any] = field(default_factory=list)


def held(state: str) -> Held:
    world.empty_tables()
    if state == "none":
        return Held(None, state)
    if state in ("READY", "CANCELLED"):
        job = world.enqueue(idempotency_key=KEY)
        if state == "CANCELLED":
            world.cancel(job)
        return Held(job, state)
    right = world.running(idempotency_key=KEY)
    db = store.connection()
    if state == "WAITING":
        store.park(db, right, wake_at=world.NEVER)
    elif state == "DEAD":
        store.record_failure(db, world.failure(right, retryable=False), world.KEEP)
    elif state in ("SUCCESSFUL", "gone"):
        world.complete(right)
    if state == "gone":
        Job.all_objects.filter(pk=right[0]).update(kept_until=world.LONG_AGO)
    return Held(right[0], state)


def enqueue(mode: OnDuplicate) -> Enqueued:
    new = world.new_job(idempotency_key=KEY, on_duplicate=mode)
    return store.enqueue(store.connection(), new)


def enqueue_in_a_transaction(mode: OnDuplicate) -> Enqueued:
    with transaction.atomic():
        return enqueue(mode)


def enqueue_and_roll_back(mode: OnDuplicate) -> Enqueued:
    with transaction.atomic():
        enqueue(mode)
        raise RolledBackError


def told(mode: OnDuplicate, state: str) -> str:
    """Say what the contract says of one call that finds the key's holder in this state."""
    if state in ("none", "gone"):
        return "made"
    if mode is OnDuplicate.RETURN_EXISTING or (mode is OnDuplicate.RETURN_LIVE and state in LIVE):
        return "returned"
    if mode is OnDuplicate.NO_REUSE:
        return "refused"
    if mode is OnDuplicate.ALLOW_REUSE_ON_FAILURE and state not in ("DEAD", "CANCELLED"):
        return "refused"
    if mode is OnDuplicate.REPLACE and state == "READY":
        return "returned"
    return "made"


def in_order(modes: list[OnDuplicate], state: str) -> list[tuple[str, int]]:
    """Say what calls come to one after another: the answer, and whose job it names (-1: before)."""
    answers, holder = [], -1
    for place, mode in enumerate(modes):
        answer = told(mode, state)
        if answer == "made":
            holder, state = place, "READY"
        answers.append((answer, holder))
    return answers


def assert_serial(made: Held, run: Run, modes: dict[str, OnDuplicate]) -> None:
    """Both calls must have come to what they come to in one of the two orders."""
    answers = {name: run.value(name) for name in modes}
    owners = {made.before: -1} | {a.id: name for name, a in answers.items() if a.created}
    seen = {
        name: ("refused" if a.refused else "made" if a.created else "returned", owners[a.id])
        for name, a in answers.items()
    }
    possible = []
    for order in (list(modes), list(modes)[::-1]):
        expected = in_order([modes[name] for name in order], made.state)
        possible.append(
            {
                name: (answer, owner if owner == -1 else order[owner])
                for name, (answer, owner) in zip(order, expected, strict=True)
            }
        )
    assert seen in possible, (seen, possible)


def assert_one_holder(made: Held, answers: list[Enqueued]) -> None:
    world.assert_laws()
    holders = list(Job.all_objects.filter(idempotency_key=KEY).values_list("pk", flat=True))
    assert len(holders) == 1
    assert holders[0] in {answer.id for answer in answers}
    kept = {made.before, *(answer.id for answer in answers)} - {None}
    assert set(Job.all_objects.values_list("pk", flat=True)) == kept


SAME = [(mode, mode) for mode in MODES]
MIXED = [(one, other) for one in MODES for other in MODES if one is not other]


def try_both(
    director: Director, one: OnDuplicate, other: OnDuplicate, call: Any, states: list[str]
) -> None:
    for state in states:

        def check(made: Held, run: Run) -> None:
            assert_serial(made, run, {"A": one, "B": other})
            assert_one_holder(made, [run.value("A"), run.value("B")])

        director.explore(
            lambda state=state: held(state), lambda made: call(one), lambda made: call(other), check
        )


@pytest.mark.parametrize(("one", "other"), SAME)
def test_two_enqueues_on_one_key_come_to_what_one_after_the_other_does(
    director: Director, one: OnDuplicate, other: OnDuplicate
) -> None:
    try_both(director, one, other, enqueue, STATES)


@pytest.mark.parametrize(("one", "other"), SAME)
def test_two_enqueues_on_one_key_in_callers_transactions(
    director: Director, one: OnDuplicate, other: OnDuplicate
) -> None:
    try_both(director, one, other, enqueue_in_a_transaction, ["none", "READY"])


@pytest.mark.stress
@pytest.mark.parametrize(("one", "other"), SAME + MIXED)
def test_two_enqueues_of_any_modes_on_one_key(
    director: Director, one: OnDuplicate, other: OnDuplicate
) -> None:
    try_both(director, one, other, enqueue, ALL_STATES)
    try_both(director, one, other, enqueue_in_a_transaction, ALL_STATES)


@pytest.mark.parametrize("mode", MODES)
def test_a_winner_that_is_rolled_back_leaves_the_key_as_it_was(
    director: Director, mode: OnDuplicate
) -> None:
    for state in ("none", "READY", "DEAD"):

        def check(made: Held, run: Run) -> None:
            assert_serial(made, run, {"B": mode})
            assert_one_holder(made, [run.value("B")])

        director.explore(
            lambda state=state: held(state),
            lambda made: enqueue_and_roll_back(mode),
            lambda made: enqueue(mode),
            check,
            errors=(RolledBackError,),
        )


@pytest.mark.parametrize("mode", [OnDuplicate.RETURN_EXISTING, OnDuplicate.NO_REUSE])
def test_a_duplicate_in_a_long_transaction_holds_up_nobody(
    director: Director, mode: OnDuplicate
) -> None:
    """A request that met a known key may go on for long; the job's worker must not wait for it."""

    def prepare() -> Held:
        world.empty_tables()
        right = world.running(idempotency_key=KEY)
        return Held(right[0], "RUNNING", [right])

    def work(made: Held) -> bool:
        db = store.connection()
        renewed = store.renew(db, made.more, world.LEASE)
        return bool(renewed) and bool(world.complete(*made.more).succeeded)

    def check(made: Held, run: Run) -> None:
        assert run.value("B")
        assert not run.waited

    director.explore(prepare, lambda made: enqueue_in_a_transaction(mode), work, check)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("end", ["success", "failure", "claim"])
def test_an_enqueue_decides_over_its_key_s_holder_as_it_is(
    director: Director, mode: OnDuplicate, end: str
) -> None:
    def prepare() -> Held:
        made = held("READY" if end == "claim" else "none")
        if end == "claim":
            made.more = [world.claims("work")]
        else:
            right = world.running(idempotency_key=KEY)
            made = Held(right[0], "RUNNING", [right])
        return made

    def move(made: Held) -> Any:
        db = store.connection()
        if end == "success":
            return world.complete(*made.more).succeeded
        if end == "failure":
            failed = world.failure(made.more[0], retryable=False)
            return store.record_failure(db, failed, world.KEEP).failed
        return made.more[0].claim(db, 5)

    after = {"success": "SUCCESSFUL", "failure": "DEAD", "claim": "RUNNING"}[end]

    def check(made: Held, run: Run) -> None:
        answer = run.value("A")
        assert_one_holder(made, [answer])
        assert made.before is not None
        if run.value("B"):
            assert world.statuses([made.before]) == [after]
        kind = "refused" if answer.refused else "made" if answer.created else "returned"
        assert kind in {told(mode, made.state), told(mode, after)}

    director.explore(prepare, lambda made: enqueue(mode), move, check)


def test_bulk_enqueues_of_the_same_keys_in_opposite_order(director: Director) -> None:
    """Both get each job once, and neither waits for the other while it is waited for."""

    def check(made: Any, run: Run) -> None:
        assert Job.all_objects.count() == 3
        both = [job for name in "AB" for job in run.value(name)]
        assert [job.created for job in both].count(True) == 3
        assert [job.idempotency_key for job in run.value("A")] == ["a", "b", "c"]
        assert [job.idempotency_key for job in run.value("B")] == ["c", "b", "a"]

    def bulk(keys: str) -> list[Job]:
        # Priorities of their own make statements of their own.
        return list(
            keyed.enqueue_many(
                [((), {}, {"idempotency_key": key, "priority": ord(key) - 97}) for key in keys]
            )
        )

    director.explore(world.empty_tables, lambda made: bulk("abc"), lambda made: bulk("cba"), check)


def dead_letter() -> Held:
    world.empty_tables()
    made = held("DEAD")
    made.more = [DeadLetter.objects.get().pk]
    return made


def replay(made: Held) -> store.Replayed:
    return store.replay(store.connection(), made.more[0], by="somebody")


def test_two_replays_make_one_job(director: Director) -> None:
    def check(made: Held, run: Run) -> None:
        world.assert_laws()
        both = [run.value("A"), run.value("B")]
        assert sorted(one.already for one in both) == [False, True]
        new = next(one.id for one in both if one.id)
        assert world.job(new).idempotency_key == KEY
        assert Job.all_objects.count() == 2
        assert DeadLetter.objects.get().replayed_as_id == new

    for key in (KEY, None):

        def prepare(key: str | None = key) -> Held:
            made = dead_letter()
            Job.all_objects.update(idempotency_key=key)
            return made

        def check_key(made: Held, run: Run, key: str | None = key) -> None:
            Job.all_objects.filter(status="READY", idempotency_key=key).update(idempotency_key=KEY)
            check(made, run)

        director.explore(prepare, replay, replay, check_key)


@pytest.mark.parametrize("mode", MODES)
def test_a_replay_and_an_enqueue_on_its_key(director: Director, mode: OnDuplicate) -> None:
    def check(made: Held, run: Run) -> None:
        replayed = run.value("A")
        assert replayed.id is not None
        answer = run.value("B")
        world.assert_laws()
        holder = Job.all_objects.get(idempotency_key=KEY)
        assert holder.pk in {replayed.id, answer.id}
        kind = "refused" if answer.refused else "made" if answer.created else "returned"
        assert kind in {told(mode, "DEAD"), told(mode, "READY")}

    director.explore(dead_letter, replay, lambda made: enqueue(mode), check)


def test_a_replay_and_the_deletion_of_its_job(director: Director) -> None:
    def delete(made: Held) -> Any:
        with transaction.atomic():
            return store.delete_trees(store.connection(), [made.before])

    def check(made: Held, run: Run) -> None:
        world.assert_laws()
        assert not Job.all_objects.filter(pk=made.before).exists()
        assert Job.all_objects.count() == (0 if run.value("A").id is None else 1)

    director.explore(dead_letter, replay, delete, check)


@pytest.mark.parametrize("mode", MODES)
def test_an_enqueue_and_the_deletion_of_its_key_s_holder(
    director: Director, mode: OnDuplicate
) -> None:
    def delete(made: Held) -> Any:
        with transaction.atomic():
            return store.delete_trees(store.connection(), [made.before])

    def check(made: Held, run: Run) -> None:
        world.assert_laws()
        assert not Job.all_objects.filter(pk=made.before).exists()
        assert Job.all_objects.count() == int(run.value("A").created)

    director.explore(lambda: held("SUCCESSFUL"), lambda made: enqueue(mode), delete, check)


def test_a_park_and_the_deletion_of_what_it_awaits(director: Director) -> None:
    def prepare() -> Held:
        made = held("SUCCESSFUL")
        made.more = [world.running("parent")]
        return made

    def delete(made: Held) -> Any:
        with transaction.atomic():
            return store.delete_trees(store.connection(), [made.before])

    def park(made: Held) -> store.Parked:
        return store.park(store.connection(), made.more[0], awaited=[made.before])

    def check(made: Held, run: Run) -> None:
        world.assert_laws()
        assert run.value("A") is store.Parked.READY
        assert Job.all_objects.count() == 1

    director.explore(prepare, park, delete, check)
