"""Contract, section 5: the record of a job that will not be tried again, and its replay."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction

from django_durable import (
    AlreadyReplayed,
    Backoff,
    JobContext,
    OnDuplicate,
    PayloadError,
    PermanentFailure,
    job,
    store,
    workflow,
)
from django_durable.models import DeadLetter, Job
from django_durable.operations import current_keep
from django_durable.signals import job_enqueued
from tests.contract.committed import Racer, at_once, backend_pid
from tests.contract.running import Runner, run, run_to_the_end

SECOND = timedelta(seconds=1)
HOUR = timedelta(hours=1)


@pytest.fixture
def work() -> Any:
    @job(name="dead.work", max_attempts=1)
    def work(value: Any, *, fail: bool = True) -> Any:
        if fail:
            raise ValueError(f"no {value}")
        return value

    return work


def dead(kind: Any, *args: Any, **options: Any) -> DeadLetter:
    """Return the dead letter of a job that has died."""
    ended = run_to_the_end(kind.using(**options).enqueue(*args))
    assert ended.status == Job.Status.DEAD
    letter: DeadLetter = ended.dead_letter
    return letter


def fresh(letter: DeadLetter) -> DeadLetter:
    return DeadLetter.objects.get(pk=letter.pk)


# The record


@pytest.mark.django_db
def test_record_holds_what_the_job_died_of() -> None:
    @job(name="dead.flaky", max_attempts=2, backoff=Backoff(initial=timedelta(0)))
    def flaky() -> None:
        raise ValueError("broke")

    ended = run_to_the_end(flaky.enqueue())
    letter = DeadLetter.objects.get()

    assert letter.job == ended
    assert (letter.reason, letter.attempt_count) == ("exhausted", 2)
    assert (letter.error_class, letter.message) == ("ValueError", "broke")
    assert 'raise ValueError("broke")' in letter.traceback
    assert letter.died_at == ended.finished_at
    assert letter.replayed_as is letter.replayed_at is None
    assert letter.replayed_by == ""
    assert letter.traceback == ended.attempts.get(number=2).traceback


def test_reasons_have_the_names_of_the_contract() -> None:
    assert DeadLetter.Reason.values == [
        "exhausted",
        "permanent",
        "lost",
        "undecodable",
        "unstorable",
    ]


@pytest.mark.django_db
def test_job_that_is_not_dead_has_no_dead_letter(work: Any) -> None:
    assert run(work.enqueue(1, fail=False)).dead_letter is None
    assert work.enqueue(1).dead_letter is None
    assert not DeadLetter.objects.exists()


# Replay


@pytest.mark.django_db
def test_replay_makes_a_new_ready_job_with_the_same_payload(work: Any) -> None:
    letter = dead(
        work,
        (1, "two"),
        queue_name="slow",
        priority=7,
        max_attempts=1,
        timeout=HOUR,
        metadata={"a": "b"},
        concurrency_key="c",
    )
    old = letter.job
    new = letter.replay()

    assert new.pk != old.pk
    assert new.created is True
    assert (new.status, new.attempt, new.dead_letter) == (Job.Status.READY, 0, None)
    same = "name queue_name priority args kwargs metadata options max_attempts concurrency_key"
    for name in same.split():
        assert getattr(new, name) == getattr(old, name), name
    assert new.args == [(1, "two")]
    assert new.enqueued_at >= old.finished_at
    assert new.run_after <= new.enqueued_at
    old.refresh_from_db()
    assert old.status == Job.Status.DEAD


@pytest.mark.django_db
def test_replay_marks_the_record(work: Any) -> None:
    letter = dead(work, 1)
    new = letter.replay()

    for record in (letter, fresh(letter)):
        assert record.replayed_as == new
        assert record.replayed_at is not None
        assert (record.reason, record.message) == ("exhausted", "no 1")


@pytest.mark.django_db
def test_replay_with_other_arguments(work: Any) -> None:
    new = dead(work, 1).replay(args=[2], kwargs={"fail": False})

    assert (new.args, new.kwargs) == ([2], {"fail": False})
    assert run(new).result() == 2


@pytest.mark.django_db
def test_replay_keeps_the_arguments_that_are_not_given(work: Any) -> None:
    new = dead(work, 1).replay(kwargs={"fail": False})

    assert run(new).result() == 1


@pytest.mark.django_db
def test_replay_with_a_wrong_call_is_a_type_error_and_nothing_is_changed(work: Any) -> None:
    letter = dead(work, 1)

    for wrong in ({"args": []}, {"args": [1, 2]}, {"kwargs": {"value": 1}}, {"kwargs": {"x": 1}}):
        with pytest.raises(TypeError, match="work"):
            letter.replay(**wrong)
    with pytest.raises(PayloadError, match="'value'"):
        letter.replay(args=[object()])
    assert Job.objects.count() == 1
    assert fresh(letter).replayed_at is None


@pytest.mark.django_db
def test_replay_of_a_type_that_this_process_does_not_know(work: Any) -> None:
    letter = dead(work, 1)
    Job.objects.update(name="dead.and.gone")

    assert fresh(letter).replay().name == "dead.and.gone"


@pytest.mark.django_db
def test_second_replay_is_refused(work: Any) -> None:
    letter = dead(work, 1)
    stale = fresh(letter)
    letter.replay()

    for record in (letter, stale, fresh(letter)):
        with pytest.raises(AlreadyReplayed):
            record.replay()
    assert Job.objects.count() == 2


@pytest.mark.django_db
def test_replay_that_dies_is_replayed_by_its_own_record(work: Any) -> None:
    first = dead(work, 1)
    second = run(first.replay()).dead_letter
    third = second.replay()

    assert fresh(second).replayed_as == third
    assert third.args == [1]


@pytest.mark.usefixtures("committed")
def test_second_replay_is_refused_in_a_race_too(work: Any) -> None:
    letter = dead(work, 1)

    answers = at_once(8, lambda _: fresh(letter).replay())

    made = [answer for answer in answers if isinstance(answer, Job)]
    assert len(made) == 1
    assert sum(isinstance(answer, AlreadyReplayed) for answer in answers) == 7
    assert fresh(letter).replayed_as == made[0]
    assert Job.objects.count() == 2


@pytest.mark.usefixtures("committed")
def test_replay_waits_for_another_one_and_takes_over_when_that_is_undone(work: Any) -> None:
    letter = dead(work, 1)
    with transaction.atomic():
        letter.replay()
        racing = Racer(lambda: fresh(letter).replay())
        racing.wait_until_blocked_by(backend_pid())
        transaction.set_rollback(True)

    assert racing.answer() == fresh(letter).replayed_as
    assert Job.objects.count() == 2


@pytest.mark.django_db
def test_replay_takes_the_idempotency_key_over(work: Any) -> None:
    letter = dead(work, 1, idempotency_key="k")
    new = letter.replay()

    assert new.idempotency_key == "k"
    letter.job.refresh_from_db()
    assert letter.job.idempotency_key is None
    duplicate = work.using(idempotency_key="k").enqueue(2)
    assert (duplicate.pk, duplicate.created) == (new.pk, False)
    assert Job.objects.by_key(work, "k").get() == new


@pytest.mark.django_db
def test_replay_leaves_the_key_with_a_job_that_took_it_over(work: Any) -> None:
    letter = dead(work, 1, idempotency_key="k")
    newer = work.using(idempotency_key="k", on_duplicate=OnDuplicate.RETURN_LIVE).enqueue(2)

    assert letter.replay().idempotency_key is None
    assert Job.objects.by_key(work, "k").get() == newer


@pytest.mark.django_db
def test_replay_keeps_the_delivery_key() -> None:
    @workflow(max_attempts=1)
    def charge(context: JobContext) -> str:
        if not context.job.metadata.get("fixed"):
            raise PermanentFailure
        return context.delivery_key

    first = run(charge.enqueue())
    assert first.delivery_key == str(first.pk)
    second = run(first.dead_letter.replay())
    third = second.dead_letter.replay()
    Job.objects.filter(pk=third.pk).update(metadata={"fixed": "yes"})

    assert run(third).result() == str(first.pk)
    assert third.delivery_key == str(first.pk)


@pytest.mark.usefixtures("committed")
def test_replay_tells_that_a_job_was_enqueued(work: Any) -> None:
    told = []

    def receive(sender: Any, job: Job, **_: Any) -> None:
        told.append(job.pk)

    letter = dead(work, 1)
    job_enqueued.connect(receive)
    try:
        new = letter.replay()
    finally:
        job_enqueued.disconnect(receive)
    assert told == [new.pk]


@pytest.mark.django_db
def test_replay_of_a_record_that_is_gone(work: Any) -> None:
    letter = dead(work, 1)
    letter.job.delete()

    with pytest.raises(DeadLetter.DoesNotExist):
        letter.replay()


@pytest.mark.django_db
@pytest.mark.parametrize("reason", ["lost", "undecodable"])
def test_every_kind_of_dead_letter_can_be_replayed(work: Any, reason: str, advance: Any) -> None:
    made = work.enqueue(1, fail=False)
    if reason == "lost":
        Runner(work).take()
        advance(HOUR)
        store.rescue(connection, current_keep())
    else:
        with connection.cursor() as cursor:
            cursor.execute("UPDATE durable_job SET args = 'broken'")
        run(made)
    letter = DeadLetter.objects.get()
    assert letter.reason == reason

    assert run(letter.replay(args=[3])).result() == 3


# Bulk replay


@pytest.mark.django_db
def test_bulk_replay_leaves_out_what_has_been_replayed(work: Any) -> None:
    letters = [dead(work, number) for number in range(4)]
    letters[1].replay()

    new = DeadLetter.objects.filter(job__name=work.name).replay()

    assert [made.args for made in new] == [[0], [2], [3]]
    assert not DeadLetter.objects.filter(replayed_at__isnull=True).exists()
    assert DeadLetter.objects.all().replay() == []


@pytest.mark.django_db
def test_bulk_replay_takes_the_dead_letters_of_the_queryset_alone(work: Any) -> None:
    dead(work, "spared")
    dead(work, "chosen", queue_name="chosen")

    (new,) = DeadLetter.objects.filter(job__queue_name="chosen").replay()

    assert new.args == ["chosen"]
    assert DeadLetter.objects.filter(replayed_at__isnull=True).count() == 1


@pytest.mark.django_db
def test_rate_of_a_bulk_replay_spreads_the_due_times(work: Any) -> None:
    for number in range(4):
        dead(work, number)

    new = DeadLetter.objects.all().replay(rate="2/s")

    waits = [(made.run_after - made.enqueued_at).total_seconds() for made in new]
    assert waits == [0, 0.5, 1, 1.5]


@pytest.mark.django_db
@pytest.mark.parametrize("rate", ["fast", "0/s", "5", 5], ids=repr)
def test_wrong_rate_is_a_value_error(work: Any, rate: Any) -> None:
    dead(work, 1)

    with pytest.raises(ValueError, match="rate"):
        DeadLetter.objects.all().replay(rate=rate)
    assert Job.objects.count() == 1
