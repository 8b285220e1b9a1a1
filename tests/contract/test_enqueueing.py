"""Contract, section 3: what a call of `enqueue` stores, when, and what it returns."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any

import psycopg
import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import Group
from django.db import (
    DatabaseError,
    IntegrityError,
    OperationalError,
    connection,
    connections,
    transaction,
)
from django.test import TestCase
from django.test.utils import CaptureQueriesContext

from django_durable import (
    Backoff,
    DuplicateJob,
    JobContext,
    OnDuplicate,
    PayloadError,
    Priority,
    enqueueing,
    job,
    workflow,
)
from django_durable.models import DeadLetter, Job
from django_durable.results import connect_to_listen
from django_durable.signals import job_enqueued
from tests.contract.committed import elsewhere, python_on_the_test_database, rolled_back
from tests.contract.running import Runner, run, run_to_the_end

SECOND = timedelta(seconds=1)
HOUR = timedelta(hours=1)


@pytest.fixture
def work() -> Any:
    @job(name="enqueued.work")
    def work(*args: Any, **kwargs: Any) -> list[Any]:
        return [list(args), kwargs]

    return work


@pytest.fixture
def mail() -> Any:
    @job(name="enqueued.mail", queue_name="mail", priority=3, max_attempts=4, requires="smtp")
    def mail(order: int, *, copy: bool = False) -> None: ...

    return mail


def stored(made: Job) -> Job:
    return Job.objects.get(pk=made.pk)


# using


@pytest.mark.django_db
def test_using_sets_the_options_of_the_jobs_that_follow(work: Any) -> None:
    moment = datetime(2040, 1, 1, tzinfo=timezone(HOUR))
    call = work.using(
        queue_name="slow",
        priority=Priority.HIGH,
        run_after=moment,
        max_attempts=7,
        backoff=Backoff(initial=SECOND),
        timeout=2 * SECOND,
        idempotency_key="k",
        on_duplicate=OnDuplicate.NO_REUSE,
        metadata={"tenant": "7"},
        concurrency_key="c",
        requires="gpu",
    )
    made = stored(call.enqueue(1))

    assert (made.queue_name, made.priority, made.run_after) == ("slow", 10, moment)
    assert (made.max_attempts, made.idempotency_key) == (7, "k")
    assert (made.metadata, made.concurrency_key, made.requires) == ({"tenant": "7"}, "c", "gpu")


@pytest.mark.django_db
def test_chained_calls_add_up_and_metadata_merges(work: Any) -> None:
    base = work.using(priority=5, metadata={"tenant": "7", "from": "web"})
    made = stored(base.using(queue_name="slow", metadata={"from": "shell"}).enqueue())

    assert (made.priority, made.queue_name) == (5, "slow")
    assert made.metadata == {"tenant": "7", "from": "shell"}
    assert stored(base.enqueue()).metadata == {"tenant": "7", "from": "web"}
    assert stored(work.enqueue()).metadata == {}


@pytest.mark.parametrize("name", ["queue", "retry_on", "takes_context", "keep_dead", "accept"])
def test_unknown_option_of_using_is_a_type_error(work: Any, name: str) -> None:
    with pytest.raises(TypeError, match=f"unknown options: {name}"):
        work.using(**{name: None})


@pytest.mark.django_db
def test_none_is_a_value_and_not_unchanged() -> None:
    @job(
        takes_context=True,
        timeout=SECOND,
        max_attempts=2,
        requires="gpu",
        concurrency_key="printer",
    )
    def work(context: JobContext) -> bool:
        return context.deadline is None

    call = work.using(
        timeout=None, max_attempts=None, requires=None, concurrency_key=None, run_after=None
    )
    made = call.using(idempotency_key="k").using(idempotency_key=None).enqueue()

    assert run(made).result() is True
    found = stored(made)
    assert (found.max_attempts, found.requires, found.concurrency_key) == (None, None, None)
    assert found.idempotency_key is None


WRONG: list[tuple[str, Any]] = [
    ("run_after", datetime(2040, 1, 1)),  # noqa: DTZ001 - naive is the point
    ("run_after", date(2040, 1, 1)),
    ("run_after", -SECOND),
    ("run_after", timedelta.max),
    ("run_after", 5),
    ("run_after", datetime.max.replace(tzinfo=timezone(-HOUR))),
    ("idempotency_key", ""),
    ("idempotency_key", 7),
    ("idempotency_key", "k" * 501),
    ("idempotency_key", "a\x00b"),
    ("idempotency_key", "\udce9"),
    ("on_duplicate", "whatever"),
    ("on_duplicate", None),
    ("metadata", None),
    ("metadata", ["a"]),
    ("metadata", {"a": 1}),
    ("metadata", {1: "a"}),
    ("metadata", {"a": "\x00"}),
    ("metadata", {"a": "\udce9"}),
]


@pytest.mark.parametrize(
    ("name", "value"), WRONG, ids=[f"{name}={value!r:.40}" for name, value in WRONG]
)
def test_value_out_of_range_is_a_value_error_when_using_is_called(
    work: Any, name: str, value: Any
) -> None:
    with pytest.raises(ValueError, match=name):
        work.using(**{name: value})


@pytest.mark.django_db
def test_run_after_is_a_moment_or_a_wait_from_now_on_by_the_clock_of_the_database(
    work: Any, advance: Callable[[timedelta], None]
) -> None:
    advance(timedelta(days=365))
    later = work.using(run_after=HOUR).enqueue()
    now = work.enqueue()
    past = work.using(run_after=datetime(2000, 1, 1, tzinfo=UTC)).enqueue()

    assert later.run_after - later.enqueued_at == HOUR
    assert now.run_after == now.enqueued_at
    assert [claim.id for claim in Runner(work).claim()] == [past.pk, now.pk]
    advance(HOUR)
    assert [claim.id for claim in Runner(work).claim()] == [later.pk]


# Arguments


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("args", "kwargs"),
    [((), {}), ((1, 2), {}), ((1,), {"order": 2}), ((1,), {"extra": 2}), ((), {"copy": True})],
)
def test_wrong_call_is_a_type_error_and_nothing_is_stored(
    mail: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    with pytest.raises(TypeError, match="mail"):
        mail.enqueue(*args, **kwargs)
    with pytest.raises(TypeError, match="mail"):
        mail.enqueue_many([((1,), {}), (args, kwargs)])
    assert not Job.objects.exists()


@pytest.mark.django_db
def test_context_is_not_the_callers_to_pass() -> None:
    @workflow
    def flow(context: JobContext, order: int) -> None: ...

    assert flow.enqueue(1).args == [1]
    with pytest.raises(TypeError, match="flow"):
        flow.enqueue("context", 1)


@pytest.mark.django_db
def test_argument_that_cannot_be_stored_is_a_payload_error_and_nothing_is_stored(mail: Any) -> None:
    with pytest.raises(PayloadError, match="'order'"):
        mail.enqueue(object())
    assert not Job.objects.exists()


# One INSERT, in the caller's transaction


@pytest.mark.django_db
def test_enqueueing_is_one_insert(work: Any, django_assert_num_queries: Any) -> None:
    with django_assert_num_queries(1) as queries:
        work.enqueue(1)
    assert "INSERT INTO durable_job" in queries[0]["sql"]

    with django_assert_num_queries(1):
        work.using(idempotency_key="k").enqueue(1)


@pytest.mark.usefixtures("committed")
def test_job_exists_exactly_if_the_business_rows_do(work: Any) -> None:
    with transaction.atomic():
        Group.objects.create(name="kept")
        kept = work.enqueue()
        with rolled_back():
            Group.objects.create(name="undone")
            work.enqueue()
    with rolled_back():
        Group.objects.create(name="gone")
        work.enqueue_many([((), {})] * 3)

    assert [group.name for group in Group.objects.all()] == ["kept"]
    assert list(Job.objects.all()) == [kept]


@pytest.mark.usefixtures("committed")
def test_no_worker_sees_the_job_before_the_commit(work: Any) -> None:
    def look() -> list[Any]:
        return [claim.id for claim in Runner(work).claim()]

    with transaction.atomic():
        made = work.enqueue()
        assert elsewhere(look) == []
    assert elsewhere(look) == [made.pk]


def notified(listener: psycopg.Connection[Any]) -> list[str]:
    """Return the queues that were notified so far."""
    with connection.cursor() as cursor:
        cursor.execute("NOTIFY durable_ready, 'the last one'")
    queues = []
    for note in listener.notifies(timeout=10):
        if note.payload == "the last one":
            return queues
        queues.append(note.payload)
    raise AssertionError("no notification came")


@pytest.mark.usefixtures("committed")
def test_workers_are_notified_after_the_commit(work: Any) -> None:
    listener = connect_to_listen("durable_ready")
    assert listener is not None
    with listener:
        with transaction.atomic():
            work.using(queue_name="announced").enqueue()
            assert notified_elsewhere(listener) == []
        assert notified(listener) == ["announced"]
        with rolled_back():
            work.using(queue_name="never").enqueue()
        assert notified(listener) == []


def notified_elsewhere(listener: psycopg.Connection[Any]) -> list[str]:
    # This thread's connection is in a transaction, whose NOTIFY would wait for its end.
    with psycopg.connect(listener.info.dsn, password=listener.info.password) as other:
        other.execute("NOTIFY durable_ready, 'the last one'")
    queues = []
    for note in listener.notifies(timeout=10):
        if note.payload == "the last one":
            return queues
        queues.append(note.payload)
    raise AssertionError("no notification came")


@pytest.mark.usefixtures("committed")
def test_signal_is_sent_after_the_commit_and_only_for_what_this_call_made(work: Any) -> None:
    sent: list[Any] = []

    def receive(sender: Any, job: Job, **_: Any) -> None:
        sent.append((sender, job.pk, connection.in_atomic_block))

    job_enqueued.connect(receive)
    try:
        with transaction.atomic():
            one = work.using(idempotency_key="k").enqueue()
            assert sent == []
        assert sent == [(Job, one.pk, False)]
        work.using(idempotency_key="k").enqueue()
        work.using(idempotency_key="k", on_duplicate=OnDuplicate.REPLACE).enqueue()
        assert len(sent) == 1
        _, two = work.enqueue_many([((), {}, {"idempotency_key": "k"}), ((), {})])
        assert sent[1:] == [(Job, two.pk, False)]
        with rolled_back():
            work.enqueue()
        assert len(sent) == 2
    finally:
        job_enqueued.disconnect(receive)


@pytest.mark.usefixtures("committed")
def test_receiver_that_fails_breaks_nothing(work: Any, caplog: pytest.LogCaptureFixture) -> None:
    def fail(**_: Any) -> None:
        raise RuntimeError("a receiver's own fault")

    job_enqueued.connect(fail)
    try:
        made = work.enqueue()
    finally:
        job_enqueued.disconnect(fail)

    assert stored(made).status == Job.Status.READY
    assert "a receiver's own fault" in caplog.text


@pytest.mark.usefixtures("committed")
def test_operations_are_part_of_the_callers_transaction_too(work: Any) -> None:
    @job(max_attempts=1)
    def fail() -> None:
        raise ValueError

    letter = run(fail.enqueue()).dead_letter
    waiting = work.using(run_after=HOUR).enqueue()
    with rolled_back():
        assert waiting.cancel() == "cancelled"
        replayed = letter.replay()

    assert stored(waiting).status == Job.Status.READY
    assert not Job.objects.filter(pk=replayed.pk).exists()
    assert DeadLetter.objects.get().replayed_at is None

    with rolled_back():
        waiting.run_now()
    assert Runner(work).claim() == []


class TestInDjangosTestCase(TestCase):
    """Enqueueing works where most projects test: inside a transaction that is rolled back."""

    def test_job_is_there(self) -> None:
        @job
        def work() -> str:
            return "done"

        assert run(work.enqueue()).result() == "done"

    def test_callbacks_are_captured(self) -> None:
        @job
        def work() -> None: ...

        with self.captureOnCommitCallbacks() as callbacks:
            work.enqueue()
        assert callbacks


# What is returned


@pytest.mark.django_db
def test_enqueue_returns_the_job_as_it_is_stored(work: Any) -> None:
    made = work.using(metadata={"a": "b"}, run_after=HOUR).enqueue(1, (2, 3), when=date(2026, 1, 1))
    found = stored(made)

    assert isinstance(made, Job)
    assert made.created is True
    assert made.id.version == 7
    for field in Job._meta.concrete_fields:
        if field.name not in ("lane", "key_hash"):  # which the database sets
            assert getattr(made, field.attname) == getattr(found, field.attname), field.name


@pytest.mark.django_db
def test_id_is_known_before_the_commit(work: Any) -> None:
    with transaction.atomic():
        made = work.enqueue()
        assert stored(made).pk == made.pk


@pytest.mark.usefixtures("committed")
def test_async_code_enqueues_with_the_a_twins(work: Any) -> None:
    async def view() -> list[Any]:
        one = await work.aenqueue(1)
        two = await work.using(priority=5).aenqueue(2)
        three, four = await work.aenqueue_many([((3,), {}), ((4,), {})])
        return [one.pk, two.pk, three.pk, four.pk]

    async def main() -> list[Any]:
        try:
            return await view()
        finally:
            await sync_to_async(connections.close_all)()

    ids = asyncio.run(main())

    assert [Job.objects.get(pk=pk).args for pk in ids] == [[1], [2], [3], [4]]


# enqueue_many


@pytest.mark.django_db
def test_enqueue_many_stores_a_job_for_each_call_in_order(mail: Any) -> None:
    jobs = mail.enqueue_many(
        [((1,), {}), ((2,), {"copy": True}), ((3,), {}, {"idempotency_key": "r-3", "priority": 9})]
    )

    assert len(jobs) == 3
    assert [made.args for made in jobs] == [[1], [2], [3]]
    assert [made.kwargs for made in jobs] == [{}, {"copy": True}, {}]
    assert [made.priority for made in jobs] == [3, 3, 9]
    assert [made.idempotency_key for made in jobs] == [None, None, "r-3"]
    assert all(made.created for made in jobs)
    assert [stored(made).args for made in jobs] == [[1], [2], [3]]
    assert {made.pk for made in Job.objects.all()} == {made.pk for made in jobs}


@pytest.mark.django_db
def test_enqueue_many_costs_a_round_trip_per_thousands(
    work: Any, django_assert_num_queries: Any
) -> None:
    # A savepoint and its release around them, since the test has a transaction.
    with django_assert_num_queries(2 + 3):
        jobs = work.enqueue_many(((number,), {}) for number in range(6000))
    assert Job.objects.count() == len(jobs) == 6000


@pytest.mark.django_db
@pytest.mark.parametrize("options", [{}, {"metadata": {"a": "b"}}])
def test_an_enqueued_job_is_what_the_database_has(work: Any, options: dict[str, Any]) -> None:
    made = work.using(**options).enqueue(1, unit="kg")
    (bulk,) = work.enqueue_many([((1,), {"unit": "kg"}, options)])
    columns = [field.attname for field in Job._meta.concrete_fields]
    # Set by a trigger.
    columns.remove("lane")
    for one in (made, bulk):
        stored = Job.objects.get(pk=one.pk)
        assert one == stored
        assert not one._state.adding
        assert {c: getattr(one, c) for c in columns} == {c: getattr(stored, c) for c in columns}
        one.save()
    assert made.progress is not bulk.progress


@pytest.mark.django_db
def test_enqueue_many_builds_its_jobs_when_they_are_looked_at(
    work: Any, django_assert_num_queries: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = []
    original = enqueueing.as_job

    def count(*args: Any) -> Job:
        built.append(original(*args))
        return built[-1]

    monkeypatch.setattr(enqueueing, "as_job", count)
    jobs = work.enqueue_many([((number,), {}) for number in range(100)])
    assert built == []
    with django_assert_num_queries(0):
        assert [each.args for each in jobs[2:4]] == [[2], [3]]
        assert jobs[-1].args == [99]
        assert jobs[-1] is jobs[99]
    assert len(built) == 3
    with pytest.raises(IndexError):
        _ = jobs[100]


@pytest.mark.django_db
def test_enqueue_many_gives_the_existing_job_for_an_existing_key(work: Any) -> None:
    first = work.using(idempotency_key="k").enqueue("first")

    jobs = work.enqueue_many(
        [
            (("a",), {}, {"idempotency_key": "k"}),
            (("b",), {}, {"idempotency_key": "new"}),
            (("c",), {}, {"idempotency_key": "new"}),
        ]
    )

    assert [each.pk for each in jobs] == [first.pk, jobs[1].pk, jobs[1].pk]
    assert [each.created for each in jobs] == [False, True, False]
    assert [each.args for each in jobs] == [["first"], ["b"], ["b"]]


@pytest.mark.usefixtures("committed")
def test_enqueue_many_is_all_or_nothing(work: Any) -> None:
    work.using(idempotency_key="k").enqueue()
    calls = [((1,), {}), ((2,), {}, {"idempotency_key": "k"})]

    with pytest.raises(DuplicateJob):
        work.using(on_duplicate=OnDuplicate.NO_REUSE).enqueue_many(calls)
    with pytest.raises(PayloadError):
        work.enqueue_many([((1,), {}), ((object(),), {})])
    with pytest.raises(TypeError, match="unknown options: key"):
        work.enqueue_many([((1,), {}), ((2,), {}, {"key": "k"})])
    assert Job.objects.count() == 1


@pytest.mark.django_db
@pytest.mark.parametrize(
    "entry",
    [1, "ab", (), ((1,), {}, {}, {}), {1: 2}, (1, {}), ("a", {}), ((1,), []), ((1,), {}, [])],
    ids=repr,
)
def test_enqueue_many_refuses_what_is_no_call(work: Any, entry: Any) -> None:
    with pytest.raises(TypeError):
        work.enqueue_many([entry])


@pytest.mark.django_db
def test_enqueue_many_of_nothing_is_empty(work: Any) -> None:
    jobs = work.enqueue_many([])

    assert list(jobs) == []
    assert not jobs


# Where the caller's transaction is broken already


@pytest.mark.django_db
def test_a_broken_transaction_stays_the_callers_affair(work: Any) -> None:
    Group.objects.create(name="one")
    with rolled_back():
        with pytest.raises(IntegrityError):
            Group.objects.create(name="one")
        with pytest.raises(DatabaseError):
            work.enqueue()
    assert not Job.objects.exists()


@pytest.mark.django_db
def test_arguments_are_kept_as_they_were_when_enqueued(work: Any) -> None:
    numbers = [1, 2]
    made = work.enqueue(numbers)
    numbers.append(3)

    assert made.args == [[1, 2]]
    assert run_to_the_end(made).result() == [[[1, 2]], {}]


ELSEWHERE = """
import django
from django.conf import settings
from testproject import settings as project

given = {name: value for name, value in vars(project).items() if name.isupper()}
lite = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
jobs = given.pop("DATABASES")["default"]
settings.configure(**given, DATABASES={"default": lite, "jobs": jobs}, DURABLE_DATABASE="jobs")
django.setup()
from django_durable import job
from django_durable.models import Job
from tests.contract.committed import rolled_back

@job(name="enqueued.elsewhere")
def work(value): ...

made = work.using(idempotency_key="k").enqueue(1)
assert Job.objects.get().pk == made.pk and Job.objects.all().db == "jobs"
assert [each.created for each in work.enqueue_many([((2,), {}), ((3,), {})])] == [True, True]
with rolled_back(using="jobs"):
    work.enqueue(4)
assert made.cancel() == "cancelled" and made.tree().get() == made
print(*Job.objects.order_by("pk").values_list("status", flat=True))
"""


@pytest.mark.usefixtures("committed")
def test_jobs_are_in_the_database_that_the_setting_names() -> None:
    process = python_on_the_test_database(ELSEWHERE)
    answer, _ = process.communicate(timeout=60)

    assert answer == "CANCELLED READY READY\n"
    assert Job.objects.count() == 3


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("place", [10, 2500, 5999])
def test_one_of_many_that_the_database_refuses_stores_none(work: Any, place: int) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            " RAISE EXCEPTION 'refused' USING ERRCODE = 'integrity_constraint_violation'; END $$;"
            "CREATE TRIGGER refuse BEFORE INSERT ON durable_job FOR EACH ROW"
            f" WHEN (NEW.args = '[{place}]') EXECUTE FUNCTION refuse()"
        )
    try:
        with transaction.atomic():
            kept = work.enqueue(-1)
            with pytest.raises(IntegrityError, match="refused"):
                work.enqueue_many(((number,), {}) for number in range(6000))
            assert [job.pk for job in Job.objects.all()] == [kept.pk]
    finally:
        with connection.cursor() as cursor:
            cursor.execute("DROP FUNCTION refuse CASCADE")
    assert Job.objects.get().pk == kept.pk


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("place", [10, 2500, 5999])
def test_one_of_many_that_can_not_be_stored_stores_none(work: Any, place: int) -> None:
    with transaction.atomic():
        kept = work.enqueue(-1)
        with pytest.raises(PayloadError):
            work.enqueue_many(
                ((object() if number == place else number,), {}) for number in range(6000)
            )
        assert Job.objects.count() == 1
    assert Job.objects.get().pk == kept.pk


@pytest.mark.django_db
def test_calls_for_enqueue_many_may_come_from_the_database(work: Any) -> None:
    work.enqueue_many(((number,), {}) for number in range(2500))
    again = work.enqueue_many(
        ((job.args[0],), {}) for job in Job.objects.order_by("pk").iterator(chunk_size=10)
    )
    assert [job.args for job in again] == [[number] for number in range(2500)]


PREPARED = "SELECT count(*) FROM pg_prepared_statements WHERE statement LIKE '%INTO durable_job%'"


def prepared() -> int:
    with connection.cursor() as cursor:
        cursor.execute(PREPARED)
        return int(cursor.fetchone()[0])


@pytest.fixture
def enqueues_often(work: Any) -> Any:
    """A connection that has prepared the statement."""
    connection.close()
    made = [work.enqueue(number) for number in range(4)]
    assert prepared() == 0
    made += [work.enqueue(number) for number in range(4, 8)]
    assert prepared() == 1
    return made


@pytest.mark.django_db(transaction=True)
def test_a_connection_that_enqueues_often_prepares_for_it(work: Any, enqueues_often: Any) -> None:
    stored = list(Job.objects.order_by("pk"))
    assert [job.pk for job in stored] == [job.pk for job in enqueues_often]
    assert [job.args for job in stored] == [[number] for number in range(8)]
    assert [job.enqueued_at for job in stored] == [job.enqueued_at for job in enqueues_often]
    # Nothing else of the connection is prepared because of it.
    assert connection.connection.prepare_threshold is None
    assert prepared() == 1


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("enqueues_often")
@pytest.mark.parametrize("how", ["DISCARD ALL", "DEALLOCATE ALL", "DISCARD PLANS"])
def test_a_connection_may_forget_what_it_has_prepared(work: Any, how: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(how)
    with transaction.atomic():
        work.enqueue(-1)
    assert [work.enqueue(number).created for number in range(8)] == [True] * 8
    connection.set_autocommit(False)
    try:
        work.enqueue(-2)
        connection.rollback()
    finally:
        connection.set_autocommit(True)
    assert work.enqueue(8).created
    assert Job.objects.count() == 8 + 10


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("enqueues_often")
def test_what_is_prepared_can_be_watched_and_keeps_djangos_rules(work: Any) -> None:
    with CaptureQueriesContext(connection) as captured:
        work.enqueue(1)
        work.enqueue(2)
    # Beside them a notification, if the last one is long enough ago.
    texts = [query["sql"] for query in captured.captured_queries]
    assert sum("INSERT INTO durable_job" in text for text in texts) == 2
    seen = []

    def watch(execute: Any, sql: str, params: Any, many: Any, context: Any) -> Any:
        seen.append(sql)
        return execute(sql, params, many, context)

    with connection.execute_wrapper(watch):
        work.enqueue(3)
    assert any("INSERT INTO durable_job" in text for text in seen)

    with transaction.atomic():
        work.enqueue(4)
        transaction.set_rollback(True)
        with pytest.raises(transaction.TransactionManagementError):
            work.enqueue(5)
    assert Job.objects.count() == 8 + 3


def cut() -> None:
    pid = connection.connection.info.backend_pid

    def terminate() -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(%s)", [pid])

    elsewhere(terminate)


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("enqueues_often")
def test_a_connection_that_is_cut_says_so_as_django_does(work: Any) -> None:
    cut()
    with pytest.raises(OperationalError):
        work.enqueue(1)
    connection.close_if_unusable_or_obsolete()
    assert work.enqueue(2).created
    assert Job.objects.count() == 9


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("enqueues_often")
def test_a_connection_that_was_cut_between_requests_is_replaced_where_its_health_is_checked(
    work: Any,
) -> None:
    # As at the beginning of a request, with CONN_HEALTH_CHECKS; a new connection has its own.
    connection.health_check_enabled, connection.health_check_done = True, False
    cut()
    assert work.enqueue(1).created
    assert Job.objects.count() == 9


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("enqueues_often")
def test_what_the_server_refuses_is_raised_as_django_does_and_stores_nothing(work: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            " RAISE EXCEPTION 'refused: é' USING ERRCODE = 'unique_violation'; END $$;"
            "CREATE TRIGGER refuse BEFORE INSERT ON durable_job FOR EACH ROW"
            " WHEN (NEW.args = '[-1]') EXECUTE FUNCTION refuse()"
        )
    try:
        with pytest.raises(IntegrityError, match="refused: é") as caught:
            work.enqueue(-1)
        assert caught.value.__cause__.diag.message_primary == "refused: é"
        assert work.enqueue(1).created
    finally:
        with connection.cursor() as cursor:
            cursor.execute("DROP FUNCTION refuse CASCADE")
    assert Job.objects.count() == 9
    assert prepared() == 1


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("enqueues_often")
def test_a_name_that_somebody_has_taken_in_the_session_is_let_be(work: Any) -> None:
    connection.close()
    with connection.cursor() as cursor:
        cursor.execute("PREPARE durable_enqueue_plain AS SELECT 1")
    assert [work.enqueue(number).created for number in range(8)] == [True] * 8
    assert Job.objects.count() == 8 + 8


@pytest.mark.django_db(transaction=True)
def test_whoever_commits_by_hand_can_enqueue_and_cancel(work: Any) -> None:
    listening = connect_to_listen("durable_ready")
    assert listening is not None
    connection.set_autocommit(False)
    try:
        gone = work.enqueue(1)
        connection.rollback()
        kept = work.enqueue(2)
        many = work.enqueue_many([((3,), {}), ((4,), {})])
        many[0].cancel()
        assert not list(listening.notifies(timeout=0.2))
        connection.commit()
    finally:
        connection.rollback()
        connection.set_autocommit(True)
    assert {note.payload for note in listening.notifies(timeout=5, stop_after=1)} == {"default"}
    listening.close()
    assert not Job.objects.filter(pk=gone.pk).exists()
    assert Job.objects.get(pk=kept.pk).status == Job.Status.READY
    assert [job.status for job in Job.objects.filter(pk__gt=kept.pk).order_by("pk")] == [
        Job.Status.CANCELLED,
        Job.Status.READY,
    ]
