"""Ends, parks, wakes and cancellations: no order of statements loses a job, or ends one twice."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest

from django_durable import store
from django_durable.models import Attempt
from tests.kernel import world
from tests.kernel.interleaving import Director, Run

FINISHED = {"SUCCESSFUL", "DEAD", "CANCELLED"}


@dataclass
class Family:
    """Hold some running jobs and the job that waits for them, or is about to."""

    children: list[store.Right]
    parent: store.Right
    more: list[Any] = field(default_factory=list)

    def statuses(self) -> list[str]:
        return world.statuses([right[0] for right in self.children])

    def parent_status(self) -> str:
        return world.statuses([self.parent[0]])[0]


def family(*, parent_first: bool, parked: bool, children: int = 1, **parent: Any) -> Family:
    """Make the children before or after the parent: ids, and so lock orders, go by age."""
    world.empty_tables()
    first = world.running("parent", **parent) if parent_first else None
    rights = [world.running("child") for _ in range(children)]
    right = first or world.running("parent", **parent)
    made = Family(rights, right)
    if parked:
        park(made)
    return made


def park(made: Family, **how: Any) -> store.Parked:
    awaited = [right[0] for right in made.children]
    return store.park(store.connection(), made.parent, awaited=awaited, **how)


def complete(*rights: store.Right) -> set[Any]:
    return set(world.complete(*rights).succeeded)


def cancel(made: Family) -> dict[Any, str]:
    ids = [made.parent[0], *(right[0] for right in made.children)]
    return {change.id: change.status for change in world.cancel(*ids)[0]}


either_age = pytest.mark.parametrize("parent_first", [True, False])


@either_age
def test_a_park_sees_the_end_of_the_awaited_or_is_woken_by_it(
    director: Director, parent_first: bool
) -> None:
    def check(made: Family, run: Run) -> None:
        world.assert_laws()
        assert made.statuses() == ["SUCCESSFUL"]
        expected = "READY" if run.value("A") is store.Parked.PARKED else "RUNNING"
        assert made.parent_status() == expected

    runs = director.explore(
        lambda: family(parent_first=parent_first, parked=False),
        park,
        lambda made: complete(*made.children),
        check,
    )
    assert {run.value("A") for run in runs} == {store.Parked.PARKED, store.Parked.READY}


@either_age
@pytest.mark.parametrize("how", ["failure", "cancel", "rescue", "release"])
def test_a_park_sees_or_is_woken_by_whatever_ends_the_awaited(
    director: Director, parent_first: bool, how: str
) -> None:
    def prepare() -> Family:
        made = family(parent_first=parent_first, parked=False)
        child = made.children[0][0]
        if how == "rescue":
            world.lapse(child)
        if how in ("rescue", "release"):
            world.cancel(child)
        if how == "cancel":
            store.release(store.connection(), made.children, keep=world.KEEP)
        return made

    def check(made: Family, run: Run) -> None:
        # A sweep leaves what somebody is writing; the next one takes it.
        store.rescue(store.connection(), world.KEEP)
        world.assert_laws()
        assert set(made.statuses()) <= FINISHED
        expected = "READY" if run.value("A") is store.Parked.PARKED else "RUNNING"
        assert made.parent_status() == expected

    director.explore(prepare, park, lambda made: end(made, how), check)


def end(made: Family, how: str) -> None:
    db = store.connection()
    if how == "failure":
        store.record_failure(db, world.failure(made.children[0], retryable=False), world.KEEP)
    elif how == "cancel":
        world.cancel(made.children[0][0])
    elif how == "rescue":
        store.rescue(db, world.KEEP)
    else:
        store.release(db, made.children, keep=world.KEEP)


@either_age
def test_the_last_of_two_awaited_jobs_wakes_the_waiter(
    director: Director, parent_first: bool
) -> None:
    def check(made: Family, run: Run) -> None:
        world.assert_laws()
        assert made.statuses() == ["SUCCESSFUL", "SUCCESSFUL"]
        assert made.parent_status() == "READY"
        woken = [run.value(name).woken_queues for name in "AB"]
        assert sorted(woken, key=len) == [frozenset(), frozenset({"default"})]

    director.explore(
        lambda: family(parent_first=parent_first, parked=True, children=2),
        lambda made: world.complete(made.children[0]),
        lambda made: world.complete(made.children[1]),
        check,
    )


@either_age
def test_batches_that_end_jobs_of_the_same_waiters_wake_each_once(
    director: Director, parent_first: bool
) -> None:
    def prepare() -> Family:
        made = family(parent_first=parent_first, parked=True, children=4)
        ids = [right[0] for right in made.children]
        made.more = [world.waiting([ids[0], ids[3]], name="second")]
        return made

    def check(made: Family, run: Run) -> None:
        world.assert_laws()
        assert made.statuses() == ["SUCCESSFUL"] * 4
        assert [made.parent_status(), *world.statuses(made.more)] == ["READY", "READY"]

    director.explore(
        prepare,
        lambda made: complete(made.children[0], made.children[1]),
        lambda made: complete(made.children[3], made.children[2]),
        check,
    )


@either_age
def test_a_park_on_two_jobs_against_one_batch_that_ends_both(
    director: Director, parent_first: bool
) -> None:
    def check(made: Family, run: Run) -> None:
        world.assert_laws()
        assert made.statuses() == ["SUCCESSFUL", "SUCCESSFUL"]
        expected = "READY" if run.value("A") is store.Parked.PARKED else "RUNNING"
        assert made.parent_status() == expected

    director.explore(
        lambda: family(parent_first=parent_first, parked=False, children=2),
        park,
        lambda made: complete(*made.children),
        check,
    )


def test_two_waiters_park_on_one_job(director: Director) -> None:
    def prepare() -> Family:
        made = family(parent_first=True, parked=False)
        made.more = [world.running("second")]
        return made

    def check(made: Family, run: Run) -> None:
        world.complete(*made.children)
        world.assert_laws()
        assert world.statuses([made.parent[0], made.more[0][0]]) == ["READY", "READY"]

    director.explore(
        prepare,
        park,
        lambda made: store.park(store.connection(), made.more[0], awaited=[made.children[0][0]]),
        check,
    )


@either_age
def test_a_waiter_whose_moment_has_come_is_claimed_or_woken(
    director: Director, parent_first: bool
) -> None:
    def prepare() -> Family:
        made = family(parent_first=parent_first, parked=False)
        park(made, wake_at=world.LONG_AGO)
        made.more = [world.claims("parent")]
        return made

    def check(made: Family, run: Run) -> None:
        world.assert_laws()
        taken = run.value("A")
        assert made.parent_status() == ("RUNNING" if taken else "READY")
        again = [] if taken else world.claim("parent")
        assert [claim.attempt for claim in [*taken, *again]] == [1]

    director.explore(
        prepare,
        lambda made: made.more[0].claim(store.connection(), 5),
        lambda made: complete(*made.children),
        check,
    )


def test_a_sleeper_that_parks_is_claimed_after_its_park_or_not_at_all(
    director: Director,
) -> None:
    def prepare() -> Family:
        made = family(parent_first=True, parked=False)
        made.more = [world.claims("parent")]
        return made

    def check(made: Family, run: Run) -> None:
        world.assert_laws()
        assert run.value("A") is store.Parked.PARKED
        assert made.parent_status() == ("RUNNING" if run.value("B") else "WAITING")

    def look_and_claim(made: Family) -> list[store.Claim]:
        made.more[0].look(store.connection())
        return made.more[0].claim(store.connection(), 5)

    director.explore(
        prepare,
        lambda made: store.park(store.connection(), made.parent, wake_at=world.LONG_AGO),
        look_and_claim,
        check,
    )


def test_a_second_park_waits_only_for_what_it_names(director: Director) -> None:
    """A wait that its deadline ended leaves nothing behind that later waits would wait for."""

    def prepare() -> Family:
        made = family(parent_first=True, parked=False, children=2)
        first = made.children[0]
        store.park(store.connection(), made.parent, awaited=[first[0]], wake_at=world.LONG_AGO)
        (again,) = world.claim("parent")
        made.parent = (again.id, again.epoch)
        return made

    def check(made: Family, run: Run) -> None:
        world.assert_laws()
        expected = "READY" if run.value("A") is store.Parked.PARKED else "RUNNING"
        assert made.parent_status() == expected

    director.explore(
        prepare,
        lambda made: store.park(store.connection(), made.parent, awaited=[made.children[1][0]]),
        lambda made: complete(made.children[1]),
        check,
    )
    director.explore(
        prepare,
        lambda made: store.park(store.connection(), made.parent, awaited=[made.children[1][0]]),
        lambda made: complete(made.children[0]),
        lambda made, run: world.assert_laws(),
    )


@either_age
@pytest.mark.parametrize("parked", [True, False])
def test_cancel_against_completion_of_the_awaited(
    director: Director, parent_first: bool, parked: bool
) -> None:
    def check(made: Family, run: Run) -> None:
        world.assert_laws()
        assert made.statuses() == ["SUCCESSFUL"]
        assert made.parent_status() == ("CANCELLED" if parked else "RUNNING")

    director.explore(
        lambda: family(parent_first=parent_first, parked=parked),
        cancel,
        lambda made: complete(*made.children),
        check,
    )


@either_age
def test_cancel_against_park(director: Director, parent_first: bool) -> None:
    def check(made: Family, run: Run) -> None:
        world.assert_laws()
        if run.value("B") is store.Parked.PARKED:
            assert made.parent_status() == "CANCELLED"
        else:
            assert run.value("B") is store.Parked.REFUSED
            assert world.job(made.parent[0]).cancel_requested_at is not None
        assert world.job(made.children[0][0]).cancel_requested_at is not None

    director.explore(lambda: family(parent_first=parent_first, parked=False), cancel, park, check)


def test_cancel_of_a_tree_against_the_birth_of_a_child(director: Director) -> None:
    def prepare() -> Family:
        world.empty_tables()
        root = world.running("root")
        child = store.bear(
            store.connection(), world.new_job("child"), parent=root[0], root=root[0], epoch=root[1]
        )
        (taken,) = world.claim("child")
        assert taken.id == child
        return Family([(taken.id, taken.epoch)], root)

    def bear(made: Family) -> Any:
        parent, epoch = made.children[0]
        return store.bear(
            store.connection(),
            world.new_job("grandchild"),
            parent=parent,
            root=made.parent[0],
            epoch=epoch,
        )

    def check(made: Family, run: Run) -> None:
        world.assert_laws()
        born = run.value("B")
        assert world.job(made.children[0][0]).cancel_requested_at is not None
        if born is not None:
            assert world.statuses([born]) == ["CANCELLED"]

    runs = director.explore(prepare, lambda made: world.cancel(made.parent[0]), bear, check)
    assert {run.value("B") is None for run in runs} == {True, False}


def test_a_child_is_not_born_of_a_claim_that_a_rescue_has_taken(director: Director) -> None:
    def prepare() -> Family:
        world.empty_tables()
        root = world.running("root")
        world.lapse(root[0])
        return Family([], root)

    def bear(made: Family) -> Any:
        parent, epoch = made.parent
        return store.bear(
            store.connection(), world.new_job("child"), parent=parent, root=parent, epoch=epoch
        )

    def check(made: Family, run: Run) -> None:
        world.assert_laws()
        rescued = bool(run.value("B").failed)
        order = [name for name, point in run.steps if point == "COMMIT"]
        if rescued and run.value("A") is not None:
            assert order[-1] == "B", "the child was committed after the rescue"

    director.explore(
        prepare, bear, lambda made: store.rescue(store.connection(), world.KEEP), check
    )


@pytest.mark.parametrize("tree", [True, False])
def test_two_cancels_of_overlapping_jobs(director: Director, tree: bool) -> None:
    def check(made: Family, run: Run) -> None:
        world.assert_laws()
        assert made.parent_status() == "CANCELLED"
        assert sum(made.parent[0] in run.value(name) for name in "AB") == 1

    def one(made: Family) -> dict[Any, str]:
        changed, _queues = world.cancel(made.parent[0], made.children[0][0], tree=tree)
        return {change.id: change.status for change in changed}

    def other(made: Family) -> dict[Any, str]:
        changed, _queues = world.cancel(made.children[0][0], made.parent[0], tree=tree)
        return {change.id: change.status for change in changed}

    director.explore(lambda: family(parent_first=False, parked=True), one, other, check)


# Whatever may end, take or change one running job, in pairs.


def record_success(made: Family) -> bool:
    return bool(complete(made.parent))


def record_failure(made: Family) -> bool:
    failed = world.failure(made.parent, retryable=False)
    return bool(store.record_failure(store.connection(), failed, world.KEEP).failed)


def record_retry(made: Family) -> bool:
    failed = world.failure(made.parent, delay=timedelta(seconds=9))
    return bool(store.record_failure(store.connection(), failed, world.KEEP).failed)


def rescue(made: Family) -> bool:
    return bool(store.rescue(store.connection(), world.KEEP).failed)


def rescue_the_dead(made: Family) -> bool:
    claimer = made.more[0].claimer
    return bool(store.rescue(store.connection(), world.KEEP, claimers=[claimer]).failed)


def give_back(made: Family) -> bool:
    return bool(store.release(store.connection(), [made.parent], keep=world.KEEP))


def give_back_unheld(made: Family) -> bool:
    return bool(
        store.release(
            store.connection(), [], keep=world.KEEP, claimer=made.more[0].claimer, held=[]
        )
    )


def reject(made: Family) -> bool:
    delay = timedelta(seconds=7)
    return bool(
        store.release(
            store.connection(), [made.parent], keep=world.KEEP, delay=delay, rejected=True
        )
    )


def sleep(made: Family) -> bool:
    parked = store.park(store.connection(), made.parent, wake_at=world.NEVER)
    return parked is store.Parked.PARKED


ENDS = [
    record_success,
    record_failure,
    record_retry,
    rescue,
    rescue_the_dead,
    give_back,
    give_back_unheld,
    reject,
    sleep,
]
RESCUES = {rescue, rescue_the_dead}
ALL_PAIRS = [(one, other) for place, one in enumerate(ENDS) for other in ENDS[place:]]
PAIRS = [
    (record_success, rescue),
    (record_failure, rescue),
    (record_retry, rescue_the_dead),
    (give_back, rescue),
    (reject, rescue),
    (sleep, rescue),
    (record_success, record_failure),
    (record_success, give_back_unheld),
    (rescue, rescue),
]
verbs = pytest.mark.parametrize("verb", ENDS, ids=lambda verb: verb.__name__)


def lapsed_claim(*, requested: bool = False, awaited: bool = False, attempts: int = 3) -> Family:
    """Make one running job whose lease has lapsed, all verbs' prey."""
    world.empty_tables()
    by = world.owner()
    right = world.running("parent", by=by, max_attempts=attempts)
    if awaited:
        world.waiting([right[0]], name="waiter")
    world.lapse(right[0])
    if requested:
        world.cancel(right[0], tree=False)
    return Family([], right, [by])


def one_outcome(
    director: Director, one: Any, other: Any, *, requested: bool, awaited: bool
) -> None:
    def check(made: Family, run: Run) -> None:
        took = [verb for verb, name in ((one, "A"), (other, "B")) if run.value(name)]
        if not took:
            # A rescue leaves what somebody is writing, and a park may be refused beside it.
            assert {one, other} & RESCUES or sleep in (one, other)
        assert len(took) <= 1
        world.assert_laws()
        job = world.job(made.parent[0])
        outcomes = list(Attempt.objects.filter(job=job).values_list("outcome", flat=True))
        assert job.epoch == made.parent[1]
        if took:
            assert_outcome(took[0], job, outcomes, requested)
        if job.is_finished and awaited:
            assert world.claim("waiter")

    director.explore(lambda: lapsed_claim(requested=requested, awaited=awaited), one, other, check)


@pytest.mark.parametrize(("one", "other"), PAIRS, ids=lambda verb: verb.__name__)
def test_one_claim_has_one_outcome(director: Director, one: Any, other: Any) -> None:
    one_outcome(director, one, other, requested=False, awaited=True)


@pytest.mark.stress
@pytest.mark.parametrize(("one", "other"), ALL_PAIRS, ids=lambda verb: verb.__name__)
def test_one_claim_has_one_outcome_in_whatever_pair(
    director: Director, one: Any, other: Any
) -> None:
    for requested in (False, True):
        for awaited in (False, True):
            one_outcome(director, one, other, requested=requested, awaited=awaited)


def test_a_claim_that_is_asked_to_cancel_has_one_outcome(director: Director) -> None:
    one_outcome(director, record_failure, rescue, requested=True, awaited=True)
    one_outcome(director, give_back, rescue, requested=True, awaited=True)
    one_outcome(director, give_back, give_back_unheld, requested=True, awaited=True)


def assert_outcome(took: Any, job: Any, outcomes: list[str], requested: bool) -> None:
    back = "CANCELLED" if requested else "READY"
    expected = {
        record_success: ("SUCCESSFUL", []),
        record_failure: ("CANCELLED", ["cancelled"]) if requested else ("DEAD", ["failed"]),
        record_retry: ("CANCELLED", ["cancelled"]) if requested else ("READY", ["failed"]),
        rescue: (back, ["lost"]),
        rescue_the_dead: (back, ["lost"]),
        give_back: (back, []),
        give_back_unheld: (back, []),
        reject: (back, []),
        sleep: ("WAITING", []),
    }
    assert (job.status, outcomes) == expected[took]


@verbs
def test_a_cancel_reaches_a_job_however_its_claim_ends(director: Director, verb: Any) -> None:
    def check(made: Family, run: Run) -> None:
        if verb in RESCUES:
            verb(made)
        world.assert_laws()
        job = world.job(made.parent[0])
        answer = run.value("B").get(job.pk)
        if verb is sleep and not run.value("A"):
            assert (job.status, answer) == ("RUNNING", "RUNNING")
        elif verb is record_success or (verb is record_failure and answer is None):
            assert job.is_finished
        else:
            # Requested while it ran, or cancelled when its attempt was over: never again claimed.
            assert job.status == "CANCELLED"
            assert answer in ("RUNNING", "CANCELLED")

    director.explore(lambda: lapsed_claim(awaited=True), verb, cancel, check)


@verbs
def test_a_renewal_never_outlives_the_claim(director: Director, verb: Any) -> None:
    def renew(made: Family) -> bool:
        return bool(store.renew(store.connection(), [made.parent], world.LEASE))

    def check(made: Family, run: Run) -> None:
        world.assert_laws()
        job = world.job(made.parent[0])
        if run.value("A"):
            assert job.status != "RUNNING"
            assert job.lease_until is None
        else:
            # A rescue that came after the renewal, or beside it, has nothing to rescue.
            assert verb in RESCUES
            assert job.status == "RUNNING"

    director.explore(lapsed_claim, verb, renew, check)


def test_a_job_cannot_be_rescued_twice_by_its_last_attempt(director: Director) -> None:
    def check(made: Family, run: Run) -> None:
        world.assert_laws()
        assert [run.value("A"), run.value("B")].count(True) == 1
        assert world.job(made.parent[0]).status == "DEAD"

    director.explore(lambda: lapsed_claim(attempts=1, awaited=True), rescue, rescue_the_dead, check)
