"""Contract, section 3: what happens when a job with the idempotency key exists."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import IntegrityError, OperationalError, connection, transaction

from django_durable import CancelJob, DuplicateJob, OnDuplicate, PermanentFailure, job, store
from django_durable.jobtypes import registry
from django_durable.models import Job
from tests.contract.committed import (
    Racer,
    at_once,
    backend_pid,
    elsewhere,
    python_on_the_test_database,
    rolled_back,
)
from tests.contract.running import Runner, run

HOUR = timedelta(hours=1)
EVERY_MODE = list(OnDuplicate)


@pytest.fixture
def work() -> Any:
    @job(name="duplicated.work", max_attempts=1)
    def work(*args: Any, **kwargs: Any) -> Any:
        if args == ("die",):
            raise PermanentFailure
        if args == ("cancel",):
            raise CancelJob
        return list(args)

    return work


@pytest.fixture
def parked() -> Callable[[Job], Job]:
    """Give the means to park a job, as one does that sleeps."""

    def park(made: Job) -> Job:
        claim = Runner(registry.get(made.name)).take()
        wake_at = claim.claimed_at + HOUR
        answer = store.park(connection, (claim.id, claim.epoch), wake_at=wake_at)
        assert answer is store.Parked.PARKED
        return Job.objects.get(pk=made.pk)

    return park


def call(work: Any, mode: OnDuplicate, *args: Any, **options: Any) -> Job:
    made: Job = work.using(idempotency_key="k", on_duplicate=mode, **options).enqueue(*args)
    return made


STATES = ["ready", "running", "waiting", "successful", "dead", "cancelled"]
LIVE = STATES[:3]


@pytest.fixture
def existing(request: pytest.FixtureRequest, db: None, work: Any, parked: Any) -> Job:
    """A job with the key `k`, in the state that the test asks for."""
    state: str = request.param
    how = {"dead": ["die"], "cancelled": ["cancel"]}.get(state, ["first"])
    made: Job = work.using(idempotency_key="k").enqueue(*how)
    if state == "running":
        Runner(work).take()
    elif state == "waiting":
        parked(made)
    elif state != "ready":
        run(made)
    found = Job.objects.get(pk=made.pk)
    assert found.status == state.upper()
    return found


def in_states(*states: str) -> Any:
    return pytest.mark.parametrize("existing", states, indirect=True)


def assert_kept(existing: Job, second: Job) -> None:
    """The second call got the first one's job, which is as it was."""
    assert (second.pk, second.created) == (existing.pk, False)
    assert second.args == existing.args
    assert second.status == existing.status
    assert Job.objects.get().idempotency_key == "k"


def assert_moved(existing: Job, second: Job) -> None:
    """The second call made a job that has the key now; the first one goes on without."""
    assert second.pk != existing.pk
    assert second.created is True
    assert Job.objects.get(pk=second.pk).idempotency_key == "k"
    old = Job.objects.get(pk=existing.pk)
    assert old.idempotency_key is None
    assert (old.status, old.args, old.epoch) == (existing.status, existing.args, existing.epoch)


@in_states(*STATES)
def test_return_existing_returns_it_in_whatever_state(existing: Job, work: Any) -> None:
    assert_kept(existing, call(work, OnDuplicate.RETURN_EXISTING, "second"))


@in_states(*STATES)
def test_return_existing_is_the_default(existing: Job, work: Any) -> None:
    assert_kept(existing, work.using(idempotency_key="k", priority=9).enqueue("second"))


@in_states(*LIVE)
def test_return_live_returns_it_while_it_has_not_ended(existing: Job, work: Any) -> None:
    assert_kept(existing, call(work, OnDuplicate.RETURN_LIVE, "second"))


@in_states("successful", "dead", "cancelled")
def test_return_live_makes_a_new_one_of_an_ended_job(existing: Job, work: Any) -> None:
    assert_moved(existing, call(work, OnDuplicate.RETURN_LIVE, "second"))


@in_states(*STATES)
def test_allow_reuse_always_makes_a_new_one(existing: Job, work: Any) -> None:
    assert_moved(existing, call(work, OnDuplicate.ALLOW_REUSE, "second"))


@pytest.mark.django_db
def test_allow_reuse_lets_the_old_one_go_on(work: Any) -> None:
    first = call(work, OnDuplicate.ALLOW_REUSE, "first")
    second = call(work, OnDuplicate.ALLOW_REUSE, "second")

    assert [ran.pk for ran in Runner(work).run()] == [first.pk, second.pk]
    assert [first.result(), second.result()] == [["first"], ["second"]]


@in_states("dead", "cancelled")
def test_allow_reuse_on_failure_makes_a_new_one_of_a_failed_job(existing: Job, work: Any) -> None:
    assert_moved(existing, call(work, OnDuplicate.ALLOW_REUSE_ON_FAILURE, "second"))


@in_states(*LIVE, "successful")
def test_allow_reuse_on_failure_refuses_otherwise_and_names_the_state(
    existing: Job, work: Any
) -> None:
    with pytest.raises(DuplicateJob, match=f"it is {existing.status}") as caught:
        call(work, OnDuplicate.ALLOW_REUSE_ON_FAILURE, "second")
    assert caught.value.job == existing
    assert Job.objects.get() == existing


@in_states(*STATES)
def test_no_reuse_refuses(existing: Job, work: Any) -> None:
    with pytest.raises(DuplicateJob, match=f"it is {existing.status}"):
        call(work, OnDuplicate.NO_REUSE, "second")
    assert Job.objects.get() == existing


@in_states("ready")
def test_replace_gives_the_waiting_one_the_new_arguments_and_options(
    existing: Job, work: Any
) -> None:
    options = {
        "run_after": HOUR,
        "queue_name": "slow",
        "priority": 9,
        "max_attempts": 8,
        "timeout": 2 * HOUR,
        "metadata": {"a": "b"},
        "concurrency_key": "c",
        "requires": "gpu",
    }
    second = call(work, OnDuplicate.REPLACE, "second", **options)

    assert (second.pk, second.created, second.args) == (existing.pk, False, ["second"])
    found = Job.objects.get()
    assert found.args == ["second"]
    assert found.run_after > existing.enqueued_at + HOUR
    assert found.idempotency_key == "k"
    del options["run_after"]
    assert found.options == {"timeout": options.pop("timeout").total_seconds()}
    assert {name: getattr(found, name) for name in options} == options


@in_states("running", "waiting", "successful", "dead", "cancelled")
def test_replace_makes_a_new_one_of_a_job_that_has_started(existing: Job, work: Any) -> None:
    assert_moved(existing, call(work, OnDuplicate.REPLACE, "second"))


@pytest.mark.django_db
def test_replace_makes_a_new_one_of_a_job_that_waits_for_a_retry() -> None:
    @job
    def work(label: str) -> None:
        raise ValueError

    made = run(work.using(idempotency_key="k").enqueue("first"))
    assert (made.status, made.attempt) == (Job.Status.READY, 1)

    assert_moved(made, call(work, OnDuplicate.REPLACE, "second"))


@pytest.mark.django_db
def test_replace_again_and_again_is_a_debounce(work: Any) -> None:
    calls = [call(work, OnDuplicate.REPLACE, number, run_after=HOUR) for number in range(5)]

    assert len({made.pk for made in calls}) == 1
    calls[0].run_now()
    assert run(calls[0]).result() == [4]


@pytest.mark.django_db
@pytest.mark.parametrize("mode", EVERY_MODE)
def test_the_first_call_makes_the_job_in_every_mode(work: Any, mode: OnDuplicate) -> None:
    made = call(work, mode, "first")

    assert made.created
    assert Job.objects.get().idempotency_key == "k"


@pytest.mark.django_db
def test_key_is_unique_per_job_type_and_held_by_a_constraint(work: Any) -> None:
    @job
    def other() -> None: ...

    one = work.using(idempotency_key="k").enqueue()
    assert other.using(idempotency_key="k").enqueue().created
    assert work.using(idempotency_key="K").enqueue().created
    assert Job.objects.by_key(work, "k").get() == one
    with pytest.raises(IntegrityError, match="durable_job_key"), transaction.atomic():
        Job(name=work.name, idempotency_key="k", root_id=one.pk).save()


@pytest.mark.django_db
def test_key_is_free_when_retention_has_given_the_job_up(
    work: Any, advance: Callable[[timedelta], None]
) -> None:
    first = run(work.using(idempotency_key="k").enqueue())
    assert work.using(idempotency_key="k").enqueue() == first

    advance(timedelta(days=8))
    for mode in EVERY_MODE:
        with rolled_back():
            assert call(work, mode).created, mode


@pytest.mark.usefixtures("committed")
def test_key_and_job_commit_together(work: Any) -> None:
    with rolled_back():
        work.using(idempotency_key="k").enqueue()
    assert work.using(idempotency_key="k").enqueue().created


@pytest.mark.usefixtures("committed")
def test_fifty_callers_at_once_get_one_job(work: Any) -> None:
    made = at_once(50, lambda place: work.using(idempotency_key="k").enqueue(place))

    assert {each.pk for each in made} == {Job.objects.get().pk}
    assert sum(each.created for each in made) == 1
    (winner,) = (each.args for each in made if each.created)
    assert all(each.args == winner for each in made)


@pytest.mark.usefixtures("committed")
def test_callers_at_once_in_transactions_of_their_own_get_one_job(work: Any) -> None:
    def one(place: int) -> Job:
        with transaction.atomic():
            Group.objects.create(name=f"caller {place}")
            made: Job = work.using(idempotency_key="k").enqueue(place)
            if place % 3 == 0:
                # The winner may be undone: then another one wins.
                transaction.set_rollback(True)
        return made

    made = at_once(20, one)
    kept = [each for place, each in enumerate(made) if place % 3]

    assert {each.pk for each in kept} == {Job.objects.get().pk}
    assert sum(each.created for each in kept) == 1
    assert Group.objects.count() == len(kept)


ENQUEUE = """
import django
django.setup()
from django_durable import job

@job(name="duplicated.work")
def work(value): ...

input()  # until all are up
for value in range(15):
    made = work.using(idempotency_key="k").enqueue(value)
    print(made.pk, made.created)
"""


@pytest.mark.usefixtures("committed")
def test_processes_at_once_get_one_job() -> None:
    processes = [python_on_the_test_database(ENQUEUE) for _ in range(4)]
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()
    lines = [line for each in processes for line in each.communicate(timeout=60)[0].splitlines()]

    assert len(lines) == 60
    assert {line.split()[0] for line in lines} == {str(Job.objects.get().pk)}
    assert [line.split()[1] for line in lines].count("True") == 1


@pytest.mark.usefixtures("committed")
@pytest.mark.parametrize("mode", EVERY_MODE)
def test_duplicate_never_breaks_the_callers_transaction(work: Any, mode: OnDuplicate) -> None:
    work.using(idempotency_key="k").enqueue()
    with transaction.atomic():
        Group.objects.create(name="before")
        try:
            call(work, mode, "second")
        except DuplicateJob:
            assert mode in (OnDuplicate.NO_REUSE, OnDuplicate.ALLOW_REUSE_ON_FAILURE)
        Group.objects.create(name="after")

    assert Group.objects.count() == 2


@pytest.mark.usefixtures("committed")
def test_key_committed_after_a_repeatable_read_snapshot_is_a_conflict_to_repeat(work: Any) -> None:
    def enqueue() -> Job:
        made: Job = work.using(idempotency_key="k").enqueue()
        return made

    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        assert not Job.objects.exists()
        work.enqueue()
        winner = elsewhere(enqueue)
        with pytest.raises(OperationalError, match="could not serialize access"):
            enqueue()
        transaction.set_rollback(True)

    assert list(Job.objects.all()) == [winner]
    assert enqueue() == winner


@pytest.mark.usefixtures("committed")
def test_loser_of_a_race_waits_for_the_winner_and_takes_over_when_he_is_undone(work: Any) -> None:
    with rolled_back():
        winner = work.using(idempotency_key="k").enqueue("winner")
        # No row of an open transaction is seen; the caller waits for its end instead.
        assert elsewhere(lambda: not Job.objects.exists())
        racing = Racer(lambda: work.using(idempotency_key="k").enqueue("loser"))
        racing.wait_until_blocked_by(backend_pid())

    loser = racing.answer()
    assert (loser.created, loser.args) == (True, ["loser"])
    assert Job.objects.get().pk == loser.pk != winner.pk
