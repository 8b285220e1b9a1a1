"""Signals, steps and births beside whatever may come between: no order of statements loses one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.contrib.auth.models import Group

from django_durable import JobContext, execution, store, workflow
from django_durable.choices import OnDuplicate, StepKind, StepStatus
from django_durable.exceptions import CancelRequested, ClaimLost, RunParked
from django_durable.jobtypes import JobType, registry
from django_durable.models import DeadLetter, Job
from tests.kernel import world
from tests.kernel.interleaving import Director, Run

Claim = store.Claim
SLOW = pytest.mark.stress


@pytest.fixture(autouse=True)
def waiter() -> Iterator[JobType]:
    """The job type whose claims the tests have in hand; its function is never called."""

    @workflow(name="waiter")
    def waiter(context: JobContext, value: int = 0) -> None: ...

    yield waiter
    registry.remove(waiter)


def claimed(**changes: Any) -> Claim:
    job_id = world.enqueue("waiter", **changes)
    taken = {made.id: made for made in world.claim("waiter", slots=100)}
    return taken[job_id]


def alone(**changes: Any) -> Claim:
    world.empty_tables()
    return claimed(**changes)


def parked(**how: Any) -> Claim:
    claim = alone()
    assert wait(claim, **how) is RunParked
    return claim


def context_of(claim: Claim) -> JobContext:
    job_type = registry.get(claim.name)
    return JobContext(claim, job_type, execution.timeout_of(claim.options, job_type))


def ending(call: Callable[[], Any]) -> Any:
    """Return what the call returns, or the class of what ends the run."""
    try:
        return call()
    except (RunParked, ClaimLost, CancelRequested) as stopped:
        return type(stopped)


def wait(claim: Claim, **how: Any) -> Any:
    return ending(lambda: context_of(claim).wait_for_signal("word", **how))


def send(claim: Claim, payload: str = "1") -> store.Sent:
    return store.send_signal(store.connection(), claim.id, "word", payload)


def again(job_id: Any) -> Any:
    """Claim the job anew and wait again."""
    (claim,) = [made for made in world.claim("waiter") if made.id == job_id]
    return wait(claim)


@pytest.mark.parametrize("timeout", [None, 3600], ids=["for ever", "with a deadline"])
def test_a_wait_sees_a_signal_or_is_woken_by_it(director: Director, timeout: Any) -> None:
    def check(claim: Claim, run: Run) -> None:
        world.assert_laws()
        answer, sent = run.value("A"), run.value("B")
        assert sent.delivered
        if answer is RunParked:
            assert sent.woken_queue == "default"
            assert world.job(claim.id).status == "READY"
            assert again(claim.id) == 1
        else:
            assert answer == 1
            assert sent.woken_queue is None
            assert world.job(claim.id).status == "RUNNING"

    runs = director.explore(alone, lambda claim: wait(claim, timeout=timeout), send, check)
    assert {run.value("A") for run in runs} == {RunParked, 1}


def test_two_signals_wake_a_job_once_and_one_of_them_is_the_last(director: Director) -> None:
    def check(claim: Claim, run: Run) -> None:
        world.assert_laws()
        woken = [run.value(name).woken_queue for name in "AB"]
        assert sorted(woken, key=str) == [None, "default"]
        assert again(claim.id) in (1, 2)

    director.explore(parked, lambda claim: send(claim, "1"), lambda claim: send(claim, "2"), check)


def test_a_wait_that_times_out_beside_a_signal_has_one_answer(director: Director) -> None:
    def prepare() -> Claim:
        claim = parked(timeout=3600)
        # The deadline has come and a worker has taken the job.
        Job.all_objects.filter(pk=claim.id).update(due_at=world.LONG_AGO)
        Job.all_objects.get(pk=claim.id).steps.update(wake_at=world.LONG_AGO)
        (woken,) = world.claim("waiter")
        return woken

    def answer(claim: Claim) -> Any:
        try:
            return wait(claim, timeout=3600)
        except Exception as error:  # noqa: BLE001 - SignalTimeout, as is looked at
            return type(error).__name__

    def check(claim: Claim, run: Run) -> None:
        world.assert_laws()
        assert run.value("B").delivered
        # And what it was stays, whatever has come since.
        assert answer(claim) == run.value("A")

    runs = director.explore(prepare, answer, send, check)
    assert {run.value("A") for run in runs} == {1, "SignalTimeout"}


def test_a_signal_beside_the_claim_of_a_job_whose_deadline_has_come(director: Director) -> None:
    def prepare() -> Claim:
        claim = parked(timeout=3600)
        Job.all_objects.filter(pk=claim.id).update(due_at=world.LONG_AGO)
        return claim

    def check(claim: Claim, run: Run) -> None:
        world.assert_laws()
        assert run.value("B").delivered
        taken = run.value("A")
        assert world.job(claim.id).status == ("RUNNING" if taken else "READY")
        answer = wait(taken[0], timeout=3600) if taken else again(claim.id)
        assert answer == 1

    director.explore(prepare, lambda claim: world.claim("waiter"), send, check)


def test_a_signal_beside_the_rescue_of_its_job_is_kept(director: Director) -> None:
    def prepare() -> Claim:
        claim = alone()
        world.lapse(claim.id)
        return claim

    def check(claim: Claim, run: Run) -> None:
        store.rescue(store.connection(), world.KEEP)
        world.assert_laws()
        assert run.value("A").delivered
        assert world.job(claim.id).status == "READY"
        Job.all_objects.filter(pk=claim.id).update(due_at=world.LONG_AGO)
        assert again(claim.id) == 1

    director.explore(
        prepare, send, lambda claim: store.rescue(store.connection(), world.KEEP), check
    )


def test_a_wait_beside_the_rescue_of_its_run_parks_or_is_lost(director: Director) -> None:
    def prepare() -> Claim:
        claim = alone()
        world.lapse(claim.id)
        return claim

    def check(claim: Claim, run: Run) -> None:
        world.assert_laws()
        job = world.job(claim.id)
        if run.value("A") is RunParked:
            assert (job.status, job.attempts.count()) == ("WAITING", 0)
        else:
            assert run.value("A") is ClaimLost
            assert (job.status, job.attempts.count()) == ("READY", 1)
            assert not job.steps.exists()

    runs = director.explore(
        prepare, wait, lambda claim: store.rescue(store.connection(), world.KEEP), check
    )
    assert {run.value("A") for run in runs} == {RunParked, ClaimLost}


def test_a_signal_beside_the_cancel_of_a_parked_job(director: Director) -> None:
    def check(claim: Claim, run: Run) -> None:
        world.assert_laws()
        assert world.job(claim.id).status == "CANCELLED"

    runs = director.explore(parked, send, lambda claim: world.cancel(claim.id), check)
    assert {run.value("A").delivered for run in runs} == {True, False}


def test_a_wait_beside_a_cancel_is_cancelled_or_told(director: Director) -> None:
    def check(claim: Claim, run: Run) -> None:
        world.assert_laws()
        job = world.job(claim.id)
        if run.value("A") is RunParked:
            assert job.status == "CANCELLED"
        else:
            assert run.value("A") is CancelRequested
            assert job.status == "RUNNING"
            assert job.cancel_requested_at is not None

    runs = director.explore(alone, wait, lambda claim: world.cancel(claim.id), check)
    assert {run.value("A") for run in runs} == {RunParked, CancelRequested}


# Steps.


def earn(claim: Claim) -> Any:
    return ending(lambda: context_of(claim).step("earned", int, 7))


def earn_in_transaction(claim: Claim) -> Any:
    def write() -> int:
        Group.objects.create(name=f"written {claim.id}")
        return 7

    return ending(lambda: context_of(claim).atomic_step("earned", write))


@pytest.mark.parametrize("verb", [earn, earn_in_transaction], ids=["step", "atomic step"])
@pytest.mark.parametrize("other", ["rescue", "cancel", "signal", "renew"])
def test_a_step_is_recorded_exactly_if_its_claim_stands(
    director: Director, verb: Any, other: str
) -> None:
    def prepare() -> Claim:
        claim = alone()
        if other in ("rescue", "renew"):
            world.lapse(claim.id)
        return claim

    def beside(claim: Claim) -> Any:
        db = store.connection()
        right = (claim.id, claim.epoch)
        return {
            "rescue": lambda: store.rescue(db, world.KEEP),
            "cancel": lambda: world.cancel(claim.id),
            "signal": lambda: send(claim),
            "renew": lambda: store.renew(db, [right], world.LEASE),
        }[other]()

    def check(claim: Claim, run: Run) -> None:
        world.assert_laws()
        earned = run.value("A") == 7
        job = world.job(claim.id)
        assert list(job.steps.values_list("value", flat=True)) == [7] * earned
        if verb is earn_in_transaction:
            assert Group.objects.filter(name=f"written {claim.id}").count() == earned
        # A cancel is learned at the next verb, or at the look before the call.
        assert earned or run.value("A") is ClaimLost
        assert other == "rescue" or earned
        Group.objects.all().delete()

    director.explore(prepare, verb, beside, check)


# Replays of a job and of its undo job.


def two_letters() -> tuple[int, int]:
    """Let a job die that has something to take back, then its undo job; return both letters."""
    world.empty_tables()
    claim = alone(max_attempts=1)
    right = (claim.id, claim.epoch)
    bought = store.Checkpoint(
        right, StepKind.STEP, "buy", 1, StepStatus.SUCCEEDED, "7", undo_name="buy", undo_call="[]"
    )
    db = store.connection()
    store.record_checkpoints(db, [bought])
    store.record_failure(db, world.failure(right, retryable=False), world.KEEP)
    (undo,) = world.claim("waiter")
    store.record_failure(db, world.failure((undo.id, undo.epoch), retryable=False), world.KEEP)
    letters = dict(DeadLetter.objects.values_list("job_id", "pk"))
    return letters[claim.id], letters[undo.id]


def test_what_a_replay_goes_by_no_replay_of_the_undo_job_takes_back(director: Director) -> None:
    def check(letters: tuple[int, int], run: Run) -> None:
        world.assert_laws()
        job, undo = run.value("A"), run.value("B")
        assert undo.id is not None
        left = DeadLetter.objects.get(pk=letters[0]).job.steps.filter(undo_name="buy")
        if job.undoing is not None:
            # It has to wait for the undo job, which takes back what is there.
            assert (job.id, job.undoing) == (None, undo.id)
            assert left.exists()
        else:
            assert world.job(job.id).steps.get().undo_name == "buy"
            assert not left.exists()

    runs = director.explore(
        two_letters,
        lambda letters: store.replay(store.connection(), letters[0]),
        lambda letters: store.replay(store.connection(), letters[1]),
        check,
    )
    assert {run.value("A").id is None for run in runs} == {True, False}


# Forks, beside the undo job of what they copy.


def bought(claim: Claim) -> Claim:
    """Let a run earn a step that can be taken back, and another one after it."""
    right = (claim.id, claim.epoch)
    made = [
        store.Checkpoint(
            right, StepKind.STEP, "buy", 1, StepStatus.SUCCEEDED, "7", undo_name="b", undo_call="[]"
        ),
        store.Checkpoint(right, StepKind.STEP, "after", 2, StepStatus.SUCCEEDED, "8"),
    ]
    store.record_checkpoints(store.connection(), made)
    return claim


def fork(job_id: Any) -> store.Replayed:
    """Copy all that was earned."""
    return store.fork(store.connection(), job_id, copy=True)


def die_and_be_undone(claim: Claim) -> None:
    """Let the job die, and its undo job take back what there is."""
    db = store.connection()
    store.record_failure(db, world.failure((claim.id, claim.epoch), retryable=False), world.KEEP)
    (undo,) = [made for made in world.claim("waiter") if made.metadata]
    right = (undo.id, undo.epoch)
    back = store.Checkpoint(right, StepKind.COMPENSATION, "buy", 1, StepStatus.SUCCEEDED, "null")
    store.record_checkpoints(db, [back])
    world.complete(right)


def a_fork(claim: Claim) -> Any:
    """Make a fork of the claim's job, which has died since."""
    made = fork(claim.id)
    (taken,) = world.claim("waiter")
    store.record_failure(
        store.connection(), world.failure((taken.id, taken.epoch), retryable=False), world.KEEP
    )
    return made.id


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "copier",
    ["fork", *(pytest.param(kind, marks=SLOW) for kind in ("fork of a fork", "replay of a fork"))],
)
def test_nothing_that_is_taken_back_is_copied_without_a_mark(
    director: Director, copier: str
) -> None:
    def prepare() -> tuple[Claim, Any]:
        claim = bought(alone(max_attempts=1))
        return claim, claim.id if copier == "fork" else a_fork(claim)

    def copy(jobs: tuple[Claim, Any]) -> store.Replayed:
        if copier == "replay of a fork":
            letter = DeadLetter.objects.get(job=jobs[1])
            return store.replay(store.connection(), letter.pk)
        return fork(jobs[1])

    def check(jobs: tuple[Claim, Any], run: Run) -> None:
        world.assert_laws()
        copied = run.value("A")
        assert (copied.id is None) is (copied.undoing is not None)
        if copied.id is not None:
            given = world.job(copied.id).steps
            assert not given.filter(name="buy", compensated=False).exists()
            assert given.filter(name="after").exists()

    runs = director.explore(prepare, copy, lambda jobs: die_and_be_undone(jobs[0]), check)
    assert {run.value("A").id is None for run in runs} == {True, False}


# Births with keys.


def family() -> tuple[Claim, Claim]:
    world.empty_tables()
    return claimed(), claimed()


def bear(claim: Claim, keys: list[str], mode: OnDuplicate) -> list[Any]:
    job_type = registry.get("waiter")
    calls = [((), {}, {"idempotency_key": key, "on_duplicate": mode}) for key in keys]
    return [job.pk for job in context_of(claim).start_many("child", job_type, calls)]


QUICK = {OnDuplicate.RETURN_EXISTING, OnDuplicate.ALLOW_REUSE}
MODES = [OnDuplicate.RETURN_EXISTING, OnDuplicate.RETURN_LIVE, OnDuplicate.ALLOW_REUSE]


@pytest.mark.parametrize(
    "mode", [MODES[0], *(pytest.param(mode, marks=SLOW) for mode in MODES[1:])]
)
def test_two_parents_that_bear_the_same_keys_in_opposite_order(
    director: Director, mode: OnDuplicate
) -> None:
    def check(claims: tuple[Claim, Claim], run: Run) -> None:
        world.assert_laws()
        one, other = run.value("A"), list(reversed(run.value("B")))
        shared = mode is not OnDuplicate.ALLOW_REUSE
        assert (one == other) is shared
        held = Job.all_objects.filter(idempotency_key__isnull=False)
        assert held.count() == 2
        assert Job.all_objects.filter(parent__isnull=False).count() == (2 if shared else 4)

    director.explore(
        family,
        lambda claims: bear(claims[0], ["a", "b"], mode),
        lambda claims: bear(claims[1], ["b", "a"], mode),
        check,
    )


@pytest.mark.parametrize(
    ("other", "mode"),
    [
        pytest.param(other, mode, marks=[] if other == "end" and mode in QUICK else SLOW)
        for other in ("end", "cancel", "enqueue")
        for mode in (*MODES, OnDuplicate.REPLACE)
    ],
)
def test_a_birth_with_a_key_beside_what_happens_to_its_holder(
    director: Director, other: str, mode: OnDuplicate
) -> None:
    def prepare() -> tuple[Claim, Claim]:
        world.empty_tables()
        holder = claimed(idempotency_key="a")
        return claimed(), holder

    def beside(claims: tuple[Claim, Claim]) -> Any:
        holder = claims[1]
        if other == "end":
            return world.complete((holder.id, holder.epoch))
        if other == "cancel":
            return world.cancel(holder.id)
        return world.enqueue("waiter", idempotency_key="a", on_duplicate=mode)

    def check(claims: tuple[Claim, Claim], run: Run) -> None:
        world.assert_laws()
        (child,) = run.value("A")
        assert Job.all_objects.filter(idempotency_key="a").count() == 1
        born = world.job(child)
        assert (born.parent_id == claims[0].id) or child == claims[1].id or other == "enqueue"
        assert world.job(claims[0].id).steps.get().child_id == child

    director.explore(prepare, lambda claims: bear(claims[0], ["a"], mode), beside, check)
