"""What each verb of the store does, one at a time."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from django.db import connection, connections, transaction

from django_durable import store
from django_durable.choices import DeathReason, JobStatus, OnDuplicate
from django_durable.models import Attempt, DeadLetter, Job, Queue
from django_durable.store import claiming
from tests.kernel import world

pytestmark = pytest.mark.django_db
HOUR = timedelta(hours=1)
SECOND = timedelta(seconds=1)


@pytest.fixture(autouse=True)
def laws(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    # A busy machine must not look like an old snapshot.
    monkeypatch.setattr(claiming, "SLOW_LOOK", math.inf)
    yield
    world.assert_laws()


def claimed(claims: store.Claims, slots: int = 10, shunned: list[UUID] | None = None) -> list[UUID]:
    claims.look(connection)
    return [claim.id for claim in claims.claim(connection, slots, shunned or [])]


def take(*names: str) -> store.Claim:
    (claim,) = world.claim(*names)
    return claim


def right(claim: store.Claim) -> store.Right:
    return claim.id, claim.epoch


def fail(claim: store.Claim, **how: Any) -> Job:
    failed = world.failure(right(claim), **how)
    assert store.record_failure(connection, failed, world.KEEP).failed
    return world.job(claim.id)


def release(claim: store.Claim, **how: Any) -> Job:
    assert store.release(connection, [right(claim)], keep=world.KEEP, **how)
    return world.job(claim.id)


# Claim: the order.


def test_claims_come_by_priority_then_due_time_then_id() -> None:
    late = world.enqueue(delay=-SECOND)
    early = world.enqueue(delay=-HOUR)
    urgent = world.enqueue(priority=5)
    twins = [world.enqueue(run_after=world.LONG_AGO) for _ in range(3)]
    low = world.enqueue(priority=-5, run_after=world.LONG_AGO)
    order = [urgent, *sorted(twins), early, late, low]
    assert [claim.id for claim in world.claim(slots=3)] == order[:3]
    assert [claim.id for claim in world.claim(slots=9)] == order[3:]


def test_the_order_holds_over_queues_job_types_and_keys() -> None:
    jobs = [
        world.enqueue(name, queue_name=queue, delay=-HOUR + n * SECOND, concurrency_key=key)
        for n, (name, queue, key) in enumerate(
            [("a", "one", None), ("b", "two", "k"), ("a", "two", None), ("b", "one", "l")]
        )
    ]
    claims = world.claims("a", "b")
    assert [claim.id for claim in claims.claim(connection, 9)] == jobs


def test_a_job_is_not_claimed_before_it_is_due() -> None:
    job = world.enqueue(delay=HOUR)
    assert world.claim() == []
    connection.durable_clock_offset = 2 * HOUR  # type: ignore[attr-defined]
    try:
        assert [claim.id for claim in world.claim()] == [job]
    finally:
        del connection.durable_clock_offset  # type: ignore[attr-defined]


def test_a_lost_job_keeps_its_place() -> None:
    first, second = world.enqueue(), world.enqueue()
    (taken,) = world.claim(slots=1)
    world.lapse(taken.id)
    store.rescue(connection, world.KEEP)
    assert [claim.id for claim in world.claim()] == [first, second]


def test_a_returned_job_keeps_its_place_and_a_failed_one_goes_to_the_end() -> None:
    first, second = world.enqueue(), world.enqueue()
    (taken,) = world.claim(slots=1)
    release(taken)
    (again,) = world.claim(slots=1)
    assert again.id == first
    fail(again)
    assert [claim.id for claim in world.claim()] == [second, first]


# Claim: whose.


def test_a_claim_says_what_a_run_needs() -> None:
    by = world.owner("me", lease=HOUR)
    job = world.enqueue(args="[1]", kwargs='{"a":2}', options={"timeout": 3}, metadata={"m": "n"})
    (claim,) = world.claim(by=by)
    row = world.job(job)
    assert (claim.id, claim.epoch, claim.attempt) == (job, row.epoch, 1)
    assert (claim.args, claim.kwargs) == ("[1]", '{"a":2}')
    assert (claim.options, claim.metadata) == ({"timeout": 3}, {"m": "n"})
    assert (row.worker, row.claimer) == ("me", by.claimer)
    assert row.lease_until == claim.claimed_at + HOUR
    assert row.started_at == claim.claimed_at
    assert claim.due_at == row.run_after
    assert row.due_at is None


def test_each_claim_raises_the_epoch() -> None:
    world.enqueue(max_attempts=None)
    epochs = []
    for _ in range(4):
        claim = take()
        epochs.append(claim.epoch)
        release(claim)
    assert epochs == sorted(set(epochs))


def test_unknown_names_other_queues_and_requirements_are_left_untouched() -> None:
    left = [
        world.enqueue("unknown"),
        world.enqueue(queue_name="foreign"),
        world.enqueue(queue_name="excluded"),
        world.enqueue(requires="gpu"),
        world.enqueue("unknown", concurrency_key="k"),
        world.enqueue(queue_name="foreign", concurrency_key="l"),
        world.enqueue(queue_name="excluded", concurrency_key="m"),
        world.enqueue(requires="gpu", concurrency_key="n"),
    ]
    plain = world.enqueue()
    able = world.enqueue(requires="cpu")
    keyed = world.enqueue(requires="cpu", concurrency_key="o")
    claims = world.claims(
        "work",
        queues=frozenset({"default", "excluded"}),
        excluded_queues=frozenset({"excluded"}),
        capabilities=frozenset({"cpu"}),
    )
    assert claimed(claims) == [plain, able, keyed]
    assert world.statuses(left) == ["READY"] * len(left)
    assert {world.job(job).attempt for job in left} == {0}


def test_shunned_jobs_are_left_alone() -> None:
    shunned = [world.enqueue(), world.enqueue(concurrency_key="k")]
    job = world.enqueue()
    claims = world.claims()
    assert claimed(claims, shunned=shunned) == [job]
    assert claimed(claims) == shunned


def test_no_slot_takes_nothing() -> None:
    world.enqueue()
    assert world.claim(slots=0) == []


def test_a_paused_queue_is_left_until_it_is_resumed() -> None:
    jobs = [world.enqueue(queue_name="q"), world.enqueue(queue_name="q", concurrency_key="k")]
    Queue.objects.create(name="q", paused=True)
    claims = world.claims()
    assert claimed(claims) == []
    Queue.objects.update(paused=False)
    assert claimed(claims) == jobs


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("key", [None, "k"])
def test_a_claim_skips_rows_locked_by_another_worker(key: str | None) -> None:
    locked, free = (world.enqueue(concurrency_key=key and key + str(n)) for n in range(2))
    reached, done = threading.Event(), threading.Event()

    def hold() -> None:
        with transaction.atomic():
            Job.all_objects.select_for_update().get(pk=locked)
            reached.set()
            done.wait(60)
        connections.close_all()

    other = threading.Thread(target=hold)
    other.start()
    try:
        assert reached.wait(60)
        claims = world.claims()
        assert [claim.id for claim in claims.claim(connection, 5)] == [free]
        assert claims.incomplete
    finally:
        done.set()
        other.join()
    assert [claim.id for claim in claims.claim(connection, 5)] == [locked]
    assert not claims.incomplete
    world.empty_tables()


# Claim: lanes.


def test_a_lane_is_its_queue_name_requirement_and_priority() -> None:
    variants: list[dict[str, Any]] = [
        {},
        {"queue_name": "a"},
        {"queue_name": "ab"},
        {"requires": "x"},
        {"priority": 1},
    ]
    lanes = [world.job(world.enqueue(**variant)).lane for variant in variants]
    assert len(set(lanes)) == len(variants)
    # The same letters, divided in another place.
    lanes = [
        world.job(world.enqueue(name, queue_name=queue)).lane
        for name, queue in (("bc", "a"), ("c", "ab"))
    ]
    assert lanes[0] != lanes[1]
    assert world.job(world.enqueue()).lane == world.job(world.enqueue()).lane


def test_a_look_finds_a_lane_that_has_come_up() -> None:
    claims = world.claims("work", "new")
    job = world.enqueue("new")
    assert claims.claim(connection, 5) == []
    claims.look(connection)
    assert [claim.id for claim in claims.claim(connection, 5)] == [job]


def test_a_look_finds_hundreds_of_lanes_at_once() -> None:
    jobs = [world.enqueue(queue_name=f"q{n}") for n in range(150)]
    claims = world.claims()
    assert sorted(claim.id for claim in claims.claim(connection, 200)) == jobs


def test_empty_lanes_are_forgotten_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    claims = world.claims()
    world.enqueue(queue_name="passing")
    assert len(claimed(claims)) == 1
    claims.look(connection)
    assert "passing" in {lane.queue_name for lane in claims._lanes.values()}
    claims._forget_at = 0.0
    claims.look(connection)
    assert claims._lanes == {}


# Claim: keys and limits.


def test_a_key_lets_one_job_run_at_a_time_and_holds_up_no_other() -> None:
    keyed = [world.enqueue(concurrency_key="k") for _ in range(3)]
    others = [world.enqueue(concurrency_key=f"k{n}") for n in range(2)] + [world.enqueue()]
    claims = world.claims()
    taken = claims.claim(connection, 10)
    assert sorted(claim.id for claim in taken) == sorted([keyed[0], *others])
    world.complete(right(next(claim for claim in taken if claim.id == keyed[0])))
    assert claimed(claims) == [keyed[1]]


@pytest.mark.parametrize(("limit", "running"), [(1, 1), (2, 2), (7, 5), (None, 5)])
def test_a_key_lets_so_many_jobs_run_as_its_limit_says(limit: int | None, running: int) -> None:
    for _ in range(5):
        world.enqueue(concurrency_key="k")
    claims = world.claims(limits={"work": limit})
    assert len(claimed(claims, 3)) == min(running, 3)
    assert len(claimed(claims, 3)) == max(running - 3, 0)
    assert world.key_load("k") == running


@pytest.mark.parametrize(
    "end",
    [
        lambda claim: world.complete(right(claim)),
        fail,
        release,
        lambda claim: store.park(connection, right(claim), wake_at=world.NEVER),
        lambda claim: (world.lapse(claim.id), store.rescue(connection, world.KEEP)),
    ],
    ids=["success", "failure", "release", "park", "rescue"],
)
def test_a_key_is_free_again_however_its_holder_stops_running(end: Any) -> None:
    world.enqueue(concurrency_key="k")
    end(take())
    other = world.enqueue(concurrency_key="k", run_after=world.LONG_AGO)
    assert [claim.id for claim in world.claim()] == [other]


def test_a_park_may_hold_the_key() -> None:
    world.enqueue(concurrency_key="k")
    claim = take()
    store.park(connection, right(claim), wake_at=world.NEVER, hold_key=True)
    world.enqueue(concurrency_key="k")
    assert world.claim() == []
    assert world.key_load("k") == 1
    world.cancel(claim.id)
    assert len(world.claim()) == 1


def test_keys_take_turns_whatever_one_of_them_has_in_store() -> None:
    """With one slot, each of five keys runs once before one of them runs twice."""
    for n in range(5):
        for _ in range(4):
            world.enqueue(concurrency_key=f"k{n}", delay=-HOUR if n == 0 else -SECOND)
    claims = world.claims()
    turns = []
    for _ in range(10):
        claims.look(connection)
        (claim,) = claims.claim(connection, 1)
        turns.append(claim.concurrency_key)
        world.complete(right(claim))
    assert len(set(turns[:5])) == 5
    assert turns[:5] == turns[5:]


def test_keys_take_turns_by_priority() -> None:
    low = world.enqueue(concurrency_key="a", priority=-1, run_after=world.LONG_AGO)
    high = [world.enqueue(concurrency_key=key, priority=1) for key in "bc"]
    plain = world.enqueue(priority=0, run_after=world.LONG_AGO)
    claims = world.claims()
    order = [claim.id for claim in claims.claim(connection, 3)]
    assert sorted(order[:2]) == sorted(high)
    assert order[2] == plain
    assert claimed(claims) == [low]


def test_many_held_keys_hide_no_free_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """More keys than one look visits, all held but the last in turn, wherever the turn stands."""
    for n in range(120):
        for _ in range(2):
            world.enqueue(concurrency_key=f"k{n}")
    claims = world.claims()
    running = claims.claim(connection, 200)
    assert len(running) == 120
    freed = [running[0], running[60], running[119]]
    for claim in freed:
        world.complete(right(claim))
        claims.look(connection)
        (taken,) = claims.claim(connection, 2)
        assert taken.concurrency_key == claim.concurrency_key


def test_a_limited_queue_runs_no_more_than_it_may() -> None:
    jobs = [world.enqueue(queue_name="q") for _ in range(4)]
    Queue.objects.create(name="q", max_running=3)
    claims = world.claims()
    assert claimed(claims, 2) == jobs[:2]
    assert claimed(claims, 2) == jobs[2:3]
    assert claimed(claims, 2) == []


def test_a_full_queue_hides_nothing_that_lies_behind_it() -> None:
    """Also where it has more jobs in front than a claim looks at, in several lanes."""
    for n in range(200):
        world.enqueue(queue_name="full", priority=n % 3, run_after=world.LONG_AGO)
    behind = [world.enqueue(), world.enqueue(concurrency_key="k")]
    Queue.objects.create(name="full", max_running=1)
    claims = world.claims()
    taken = claimed(claims, 5)
    assert len(taken) == 3
    assert set(behind) < set(taken)
    world.enqueue()
    assert len(claimed(claims, 5)) == 1


def test_a_limit_that_is_raised_lets_more_run() -> None:
    jobs = [world.enqueue(queue_name="q") for _ in range(3)]
    Queue.objects.create(name="q", max_running=0)
    claims = world.claims()
    assert claimed(claims) == []
    Queue.objects.update(max_running=2)
    assert claimed(claims) == jobs[:2]
    Queue.objects.update(max_running=None)
    assert claimed(claims) == jobs[2:]


def test_a_returned_job_is_found_though_later_ones_were_claimed_meanwhile() -> None:
    jobs = [world.enqueue() for _ in range(30)]
    claims = world.claims()
    first = claims.claim(connection, 10)
    claims.claim(connection, 10)
    release(first[0])
    assert claimed(claims, 20) == [jobs[0], *jobs[20:]]


# Attempts.


@pytest.mark.parametrize("maximum", [1, 2, 3])
def test_a_job_runs_so_often_as_its_maximum_says(maximum: int) -> None:
    job = world.enqueue(max_attempts=maximum)
    for attempt in range(1, maximum + 1):
        claim = take()
        assert claim.attempt == attempt
        row = fail(claim)
        assert row.status == ("DEAD" if attempt == maximum else "READY")
    assert world.claim() == []
    letter = DeadLetter.objects.get(job=job)
    assert (letter.reason, letter.attempt_count) == ("exhausted", maximum)
    numbers = list(Attempt.objects.filter(job=job).values_list("number", flat=True))
    assert numbers == list(range(1, maximum + 1))


def test_a_job_without_a_maximum_is_retried_for_ever() -> None:
    world.enqueue(max_attempts=None)
    for attempt in range(1, 12):
        claim = take()
        assert claim.attempt == attempt
        assert fail(claim).status == "READY"


def test_a_park_and_what_follows_are_one_attempt() -> None:
    world.enqueue(max_attempts=1)
    claim = take()
    started_at = world.job(claim.id).started_at
    for _ in range(3):
        store.park(connection, right(claim), wake_at=world.LONG_AGO)
        claim = take()
        assert (claim.attempt, claim.resumed) == (1, True)
    release(claim)
    claim = take()
    assert (claim.attempt, claim.resumed) == (1, True)
    row = fail(claim)
    assert (row.status, row.started_at) == ("DEAD", started_at)


def test_a_failure_after_a_park_makes_the_next_claim_a_new_attempt() -> None:
    world.enqueue()
    claim = take()
    store.park(connection, right(claim), wake_at=world.LONG_AGO)
    fail(take())
    claim = take()
    assert (claim.attempt, claim.resumed) == (2, False)


def test_a_return_counts_no_attempt_and_a_rejection_counts_itself() -> None:
    job = world.enqueue(max_attempts=2)
    row = release(take())
    assert (row.attempt, row.rejections, row.started_at) == (0, 0, None)
    before = row.run_after
    row = release(take(), delay=HOUR, rejected=True)
    assert (row.attempt, row.rejections, row.status) == (0, 1, "READY")
    assert row.run_after > before + HOUR / 2
    store.run_now(connection, [job])
    fail(take())
    row = release(take(), rejected=True)
    assert (row.attempt, row.rejections) == (1, 2)
    assert row.started_at is not None
    assert fail(take()).status == "DEAD"
    assert Attempt.objects.filter(job=job).count() == 2


def test_a_maximum_that_was_lowered_under_a_waiting_retry_does_not_break_the_claim() -> None:
    job = world.enqueue(max_attempts=3)
    fail(take())
    fail(take())
    Job.all_objects.filter(pk=job).update(max_attempts=2)
    claim = take()
    assert (claim.attempt, claim.max_attempts) == (3, 3)
    assert fail(claim).status == "DEAD"


# Ends.


def test_a_success_stores_the_result_and_how_long_it_is_kept() -> None:
    world.enqueue()
    claim = take()
    recorded = store.record_successes(connection, [world.success(right(claim), '{"a": 1}')])
    row = world.job(claim.id)
    assert recorded.succeeded == {claim.id}
    assert (row.status, row.return_value) == ("SUCCESSFUL", {"a": 1})
    assert row.kept_until == row.finished_at + world.WEEK
    assert (row.lease_until, row.claimer, row.due_at) == (None, None, None)
    assert not Attempt.objects.exists()


def test_a_success_may_be_kept_for_ever() -> None:
    world.enqueue()
    claim = take()
    store.record_successes(connection, [store.Success(right(claim), "null", None)])
    assert world.job(claim.id).kept_until is None
    # The laws are for jobs that are kept for a time.
    store.delete_trees(connection, [claim.id])


def test_a_batch_records_what_stands_and_leaves_the_rest() -> None:
    for _ in range(3):
        world.enqueue()
    claims = world.claim()
    release(claims[1])
    recorded = world.complete(*map(right, claims))
    assert recorded.succeeded == {claims[0].id, claims[2].id}
    assert world.statuses(claim.id for claim in claims) == ["SUCCESSFUL", "READY", "SUCCESSFUL"]


def test_a_failure_is_retried_after_its_delay() -> None:
    world.enqueue()
    claim = take()
    row = fail(claim, delay=HOUR)
    attempt = Attempt.objects.get()
    assert (row.status, attempt.outcome) == ("READY", "failed")
    assert row.due_at == row.run_after == attempt.finished_at + HOUR
    assert (attempt.number, attempt.started_at) == (1, claim.claimed_at)
    assert (attempt.error_class, attempt.message) == ("ValueError", "it broke")


def test_a_permanent_failure_is_dead_at_once() -> None:
    world.enqueue()
    row = fail(take(), retryable=False, reason=DeathReason.PERMANENT)
    assert row.status == "DEAD"
    assert row.dead_letter.reason == "permanent"
    assert row.kept_until == row.finished_at + world.WEEK


def test_a_message_is_stored_as_it_is() -> None:
    world.enqueue()
    error = store.Failure(right(take()), world.ERROR.of("E", "{worker} 100% %s"))
    store.record_failure(connection, error, world.KEEP)
    assert Attempt.objects.get().message == "{worker} 100% %s"


def test_a_failure_may_cancel_the_job() -> None:
    world.enqueue()
    failed = world.failure(right(take()), cancel=True, cancel_reason="enough")
    (end,) = store.record_failure(connection, failed, world.KEEP).failed
    row = world.job(end.id)
    assert (end.status, end.cancel_reason) == (JobStatus.CANCELLED, "enough")
    assert (row.status, row.cancel_reason, row.dead_letter) == ("CANCELLED", "enough", None)
    assert Attempt.objects.get().outcome == "cancelled"


@pytest.mark.parametrize(("maximum", "status"), [(2, "READY"), (1, "DEAD")])
def test_a_lapsed_claim_is_recorded_as_lost(maximum: int, status: str) -> None:
    right = world.running(max_attempts=maximum, by=world.owner("gone"))
    assert not store.rescue(connection, world.KEEP).failed
    world.lapse(right[0])
    (end,) = store.rescue(connection, world.KEEP).failed
    assert (end.id, end.epoch, end.status, end.worker) == (*right, JobStatus(status), "gone")
    attempt = Attempt.objects.get()
    assert (attempt.outcome, attempt.error_class) == ("lost", "LeaseLost")
    assert "gone" in attempt.message
    assert not store.rescue(connection, world.KEEP).failed


def test_a_rescue_takes_so_many_as_it_may_and_what_dead_claimers_held() -> None:
    dead, alive = world.owner(), world.owner()
    for name, by in (("a", dead), ("b", alive)):
        for _ in range(3):
            world.enqueue(name)
        world.claim(name, by=by)
    counts = [
        len(store.rescue(connection, world.KEEP, claimers=[dead.claimer], limit=2).failed)
        for _ in range(3)
    ]
    assert counts == [2, 1, 0]
    assert Job.all_objects.running().count() == 3


def test_a_renewal_moves_the_lease_and_tells_of_a_cancel() -> None:
    rights = [world.running() for _ in range(3)]
    world.lapse(*(right[0] for right in rights))
    world.cancel(rights[1][0])
    lost = (rights[2][0], rights[2][1] + 1)
    renewed = store.renew(connection, [rights[0], rights[1], lost], HOUR)
    assert renewed == {rights[0][0]: False, rights[1][0]: True}
    assert [end.id for end in store.rescue(connection, world.KEEP).failed] == [rights[2][0]]


# Parks and wakes.


def test_a_park_waits_for_all_that_it_names_and_is_back_in_its_old_place() -> None:
    older = world.enqueue("parent", run_after=world.LONG_AGO)
    parent = take("parent")
    children = [world.running("child") for _ in range(2)]
    ended = world.running("child")
    world.complete(ended)
    awaited = [ended[0], *(child[0] for child in children)]
    assert store.park(connection, right(parent), awaited=awaited) is store.Parked.PARKED
    assert world.complete(children[0]).woken_queues == frozenset()
    assert world.job(older).status == "WAITING"
    world.enqueue("parent", delay=-SECOND)
    assert world.complete(children[1]).woken_queues == {"default"}
    assert world.claim("parent")[0].id == older


def test_a_park_on_ended_or_deleted_jobs_goes_on_without_one() -> None:
    gone, ended = world.running("child"), world.running("child")
    world.complete(gone, ended)
    store.delete_trees(connection, [gone[0]])
    parent = world.running("parent")
    parked = store.park(connection, parent, awaited=[gone[0], ended[0]])
    assert parked is store.Parked.READY
    assert world.job(parent[0]).status == "RUNNING"


def test_a_park_is_refused_to_a_lost_claim_and_to_one_that_is_asked_to_cancel() -> None:
    child, parent = world.running("child"), world.running("parent")
    lost = (parent[0], parent[1] + 1)
    assert store.park(connection, lost, awaited=[child[0]]) is store.Parked.REFUSED
    assert not world.job(child[0]).awaited
    world.cancel(parent[0])
    assert store.park(connection, parent, awaited=[child[0]]) is store.Parked.REFUSED


# Cancel, run now, delete.


def test_cancel_ends_what_waits_and_asks_what_runs() -> None:
    ready, running, ended = world.enqueue("a"), world.running("b"), world.running("c")
    parked = world.running("d")
    store.park(connection, parked, wake_at=world.NEVER)
    world.complete(ended)
    changed, _queues = world.cancel(ready, running[0], parked[0], ended[0])
    statuses = {change.id: change.status for change in changed}
    assert statuses == {ready: "CANCELLED", running[0]: "RUNNING", parked[0]: "CANCELLED"}
    assert world.job(ready).cancel_reason == "told to"
    assert world.job(ended[0]).cancel_reason == ""
    assert world.claim("a", "d") == []


def tree() -> tuple[store.Right, UUID, UUID]:
    root = world.running("root")

    def bear(parent: store.Right, name: str) -> UUID:
        child = store.bear(
            connection, world.new_job(name), parent=parent[0], root=root[0], epoch=parent[1]
        )
        made: UUID = getattr(child, "id", child)
        return made

    child = bear(root, "child")
    taken = take("child")
    return root, child, bear(right(taken), "grandchild")


def test_cancel_reaches_the_whole_tree_below_or_the_job_alone() -> None:
    root, child, grandchild = tree()
    assert {change.id for change in world.cancel(child)[0]} == {child, grandchild}
    assert world.statuses([child, grandchild]) == ["RUNNING", "CANCELLED"]
    assert world.job(root[0]).cancel_requested_at is None
    root, child, grandchild = tree()
    assert {change.id for change in world.cancel(root[0], tree=False)[0]} == {root[0]}
    assert world.statuses([child, grandchild]) == ["RUNNING", "READY"]


def test_run_now_ends_a_delay_of_ready_jobs_only() -> None:
    late, due = world.enqueue("late", delay=HOUR), world.enqueue("due")
    parked = world.running("parked")
    store.park(connection, parked, wake_at=world.NEVER)
    assert store.run_now(connection, [late, due, parked[0]]) == [(late, "default")]
    assert [claim.id for claim in world.claim("late")] == [late]


def test_delete_takes_whole_ended_trees_with_all_that_is_theirs() -> None:
    root, child, grandchild = tree()
    assert set(store.delete_trees(connection, [root[0]])[0]) == {root[0], child, grandchild}
    world.cancel(child)
    store.release(connection, [(child, world.job(child).epoch)], keep=world.KEEP)
    store.record_failure(connection, world.failure(root, retryable=False), world.KEEP)
    refused, _counts = store.delete_trees(connection, [child])
    assert refused == [child]
    assert Job.all_objects.count() == 3
    assert store.delete_trees(connection, [root[0]])[0] == []
    assert not Job.all_objects.exists()
    assert not DeadLetter.objects.exists()


# Keys.


def enqueue(mode: OnDuplicate, **changes: Any) -> store.Enqueued:
    new = world.new_job(idempotency_key="key", on_duplicate=mode, **changes)
    return store.enqueue(connection, new)


def test_the_key_moves_to_the_new_job_and_the_old_one_goes_on() -> None:
    first = enqueue(OnDuplicate.RETURN_EXISTING)
    second = enqueue(OnDuplicate.ALLOW_REUSE)
    assert (first.created, second.created) == (True, True)
    assert world.job(first.id).idempotency_key is None
    assert world.job(second.id).idempotency_key == "key"
    assert {claim.id for claim in world.claim()} == {first.id, second.id}
    assert enqueue(OnDuplicate.RETURN_EXISTING).id == second.id


def test_a_job_that_has_not_started_is_replaced_in_its_place() -> None:
    first = enqueue(OnDuplicate.REPLACE, args="[1]")
    second = enqueue(OnDuplicate.REPLACE, args="[2]", delay=HOUR, queue_name="other", priority=3)
    row = world.job(first.id)
    assert (second.id, second.created) == (first.id, False)
    assert (row.args, row.queue_name, row.priority) == ([2], "other", 3)
    assert world.claim() == []
    store.run_now(connection, [first.id])
    assert take().id == first.id
    third = enqueue(OnDuplicate.REPLACE, args="[3]")
    assert third.created
    assert world.job(first.id).args == [2]


def test_a_record_that_retention_has_given_up_keeps_no_key() -> None:
    first = enqueue(OnDuplicate.RETURN_EXISTING)
    world.complete(right(take()))
    assert enqueue(OnDuplicate.NO_REUSE).refused
    Job.all_objects.filter(pk=first.id).update(kept_until=world.LONG_AGO)
    for mode in OnDuplicate:
        with transaction.atomic():
            made = enqueue(mode)
            assert made.created
            transaction.set_rollback(True)


def test_the_same_key_twice_in_one_bulk_is_one_job() -> None:
    news = [world.new_job(idempotency_key=key) for key in ("a", "b", "b", None, None)]
    made = store.enqueue_many(connection, news)
    assert [one.created for one in made] == [True, True, False, True, True]
    assert made[1].id == made[2].id
    assert Job.all_objects.count() == 4


@pytest.mark.django_db(transaction=True)
def test_fifty_callers_at_once_get_one_row() -> None:
    ready = threading.Barrier(50)

    def call(_number: int) -> store.Enqueued:
        try:
            connection.ensure_connection()
            ready.wait(60)
            return enqueue(OnDuplicate.RETURN_EXISTING)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(50) as pool:
        answers = list(pool.map(call, range(50)))
    assert [answer.created for answer in answers].count(True) == 1
    assert len({answer.id for answer in answers}) == 1
    assert Job.all_objects.count() == 1
    world.empty_tables()


# Replays.


def test_a_replay_is_a_new_job_with_the_key_and_the_delivery_of_the_dead_one() -> None:
    first = enqueue(OnDuplicate.RETURN_EXISTING, args="[1]", priority=4, max_attempts=1)
    fail(take())
    letter = DeadLetter.objects.get()
    replayed = store.replay(connection, letter.pk, by="me", delay=HOUR)
    assert replayed.id is not None
    row = world.job(replayed.id)
    assert (row.args, row.priority, row.attempt, row.status) == ([1], 4, 0, "READY")
    assert (row.idempotency_key, row.delivery_id) == ("key", first.id)
    assert world.job(first.id).idempotency_key is None
    letter.refresh_from_db()
    assert (letter.replayed_as_id, letter.replayed_by) == (row.pk, "me")
    assert store.replay(connection, letter.pk).already
    assert store.replay(connection, letter.pk + 1).id is None
    store.run_now(connection, [row.pk])
    fail(take())
    again = store.replay(connection, DeadLetter.objects.get(job=row).pk, args="[2]")
    assert again.id is not None
    row = world.job(again.id)
    assert (row.args, row.delivery_id) == ([2], first.id)
