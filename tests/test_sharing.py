"""The recorder's connection serves runs too, and no run harms another by it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from django.db import OperationalError, connection, connections

from django_durable import JobContext, execution, store, workflow
from django_durable.choices import StepKind, StepStatus
from django_durable.jobtypes import registry
from django_durable.models import Job
from django_durable.outcomes import ParkedRun
from django_durable.store import Checkpoint, Claim, Success
from django_durable.worker import sharing
from django_durable.worker.recorder import Recorder
from tests.contract.committed import elsewhere, empty_tables
from tests.contract.running import Runner
from tests.processes.harness import wait_for

pytestmark = pytest.mark.django_db(transaction=True)


class Unused:
    """Be what the recorder does not need for checkpoints."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(name)


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    """A recorder whose thread is under way."""
    empty_tables()
    runs: Any = Unused()
    made = Recorder(runs, runs, lambda: None)
    made.loop.start()
    yield made
    made.loop.stop()
    made.loop.join()
    empty_tables()


@workflow(name="sharing.flow")
def flow(context: JobContext, wait: bool = False) -> Any:
    return context.wait_for_signal("go") if wait else None


def take() -> Claim:
    flow.enqueue()
    return Runner(flow).take()


def checkpoint(claim: Claim, name: str) -> Checkpoint:
    right = (claim.id, claim.epoch)
    return Checkpoint(right, StepKind.STEP, name, 1, StepStatus.SUCCEEDED, value="1")


def record(recorder: Recorder, claim: Claim, name: str) -> int:
    """Record a checkpoint; return the number of the connections that this thread has then."""
    assert recorder.record_checkpoints([checkpoint(claim, name)]).stands
    return sum(each.connection is not None for each in connections.all())


def backend_of(recorder: Recorder) -> int:
    with recorder._shared.if_free() as db:
        assert db is not None
        pid: int = db.connection.info.backend_pid
    return pid


def terminate(pid: int) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(%s, 10000)", [pid])


def in_thread(call: Callable[[], Any]) -> Any:
    """Call it in a thread that has no connection."""
    answers: list[Any] = []

    def run() -> None:
        try:
            answers.append(call())
        except BaseException as error:  # noqa: BLE001 - raised below
            answers.append(error)
        finally:
            connections.close_all()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(30)
    (answer,) = answers
    if isinstance(answer, BaseException):
        raise answer
    return answer


def context_of(recorder: Recorder, claim: Claim) -> JobContext:
    return JobContext(
        claim,
        registry.get(claim.name),
        timedelta(minutes=1),
        record=recorder.record_checkpoints,
        lend=recorder.lend,
        recorded=store.read_checkpoints(connection, [claim.id])[claim.id],
    )


def run(context: JobContext) -> tuple[Any, bool]:
    """Run a workflow; return its outcome, and whether it has made a connection of its own."""
    outcome = execution.execute(context)
    return outcome, connection.connection is not None


def test_a_run_records_its_steps_itself_while_the_recorder_is_idle(recorder: Recorder) -> None:
    claim = take()
    record(recorder, claim, "the recorder connects")
    names: list[str] = []
    real = store.record_for_many

    def noted(db: Any, checkpoints: Any) -> Any:
        names.append(threading.current_thread().name)
        return real(db, checkpoints)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "record_for_many", noted)
        made = in_thread(lambda: [record(recorder, claim, str(number)) for number in range(3)])
    assert made == [0, 0, 0]
    assert "recorder" not in names
    assert Job.objects.get(pk=claim.id).steps.count() == 4


def test_what_comes_while_the_connection_is_used_is_recorded_all_the_same(
    recorder: Recorder,
) -> None:
    claim = take()
    record(recorder, claim, "first")
    with recorder.lend() as is_lent:
        assert is_lent
        threads = [
            threading.Thread(target=record, args=(recorder, claim, f"{number}"))
            for number in range(5)
        ]
        for thread in threads:
            thread.start()
    for thread in threads:
        thread.join(30)
    assert Job.objects.get(pk=claim.id).steps.count() == 6


def test_a_step_survives_a_connection_that_the_server_has_closed(recorder: Recorder) -> None:
    claim = take()
    record(recorder, claim, "first")
    terminate(backend_of(recorder))
    record(recorder, claim, "second")
    assert Job.objects.get(pk=claim.id).steps.count() == 2


def test_a_wait_costs_no_connection(recorder: Recorder) -> None:
    record(recorder, take(), "the recorder connects")
    job = flow.enqueue(wait=True)
    context = context_of(recorder, Runner(flow).take())
    assert in_thread(lambda: run(context)) == (ParkedRun(context.right), False)
    job.signal("go", 7)
    resumed = context_of(recorder, Runner(flow).take())
    outcome, has_connected = in_thread(lambda: run(resumed))
    assert isinstance(outcome, Success)
    assert (outcome.result, has_connected) == ("7", False)
    assert job.steps.get().value == 7


@workflow(name="sharing.parent")
def parent(context: JobContext) -> Any:
    context.now("now")
    context.check_cancelled()
    context.sleep("zero", timedelta(0))
    context.progress(1)
    return context.call("child", flow)


def test_the_verbs_of_a_resumed_parent_cost_no_connection(recorder: Recorder) -> None:
    record(recorder, take(), "the recorder connects")
    job = parent.enqueue()
    first = context_of(recorder, Runner(parent).take())
    in_thread(lambda: run(first))
    Runner(flow).run()
    resumed = context_of(recorder, Runner(parent).take())
    outcome, has_connected = in_thread(lambda: run(resumed))
    assert isinstance(outcome, Success)
    assert (outcome.result, has_connected) == ("null", False)
    job.refresh_from_db()
    assert job.progress == {"done": 1, "total": None, "message": ""}


@workflow(name="sharing.sleeper")
def sleeper(context: JobContext) -> None:
    context.check_cancelled()
    context.progress(1)
    context.now("now")
    context.sleep("long", timedelta(hours=1))


def test_a_sleep_costs_no_connection(recorder: Recorder) -> None:
    record(recorder, take(), "the recorder connects")
    job = sleeper.enqueue()
    context = context_of(recorder, Runner(sleeper).take())
    assert in_thread(lambda: run(context)) == (ParkedRun(context.right), False)
    job.refresh_from_db()
    assert job.status == Job.Status.WAITING
    assert job.progress["done"] == 1


@pytest.mark.parametrize("how", ["closed by the server", "away", "busy", "not open yet"])
def test_a_wait_connects_itself_where_the_connection_is(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    job = flow.enqueue(wait=True)
    job.signal("go", 7)
    context = context_of(recorder, Runner(flow).take())
    if how != "not open yet":
        record(recorder, take(), "the recorder connects")
    if how == "closed by the server":
        terminate(backend_of(recorder))
    elif how == "away":
        recorder._shared._db = None
    monkeypatch.setattr(sharing, "PATIENCE", 0.01)
    if how == "busy":
        with recorder.lend() as is_lent:
            assert is_lent
            outcome, has_connected = in_thread(lambda: run(context))
    else:
        outcome, has_connected = in_thread(lambda: run(context))
    assert isinstance(outcome, Success)
    assert (outcome.result, has_connected) == ("7", True)


def test_a_wait_that_meets_a_lock_keeps_nobody_else_waiting(recorder: Recorder) -> None:
    """A signal that is sent in a long transaction locks the job's row until its commit."""
    other = take()
    record(recorder, other, "first")
    job = flow.enqueue(wait=True)
    context = context_of(recorder, Runner(flow).take())
    answers: list[Any] = []
    with store.transaction():
        job.signal("go", 7)
        waiter = threading.Thread(target=lambda: answers.append(in_thread(lambda: run(context))))
        waiter.start()
        wait_for_lock()
        in_thread(lambda: record(recorder, other, "second"))
        assert not answers
    waiter.join(30)
    ((outcome, has_connected),) = answers
    assert (outcome.result, has_connected) == ("7", True)
    assert Job.objects.get(pk=other.id).steps.count() == 2


def test_progress_waits_for_a_lock_for_longer_than_the_project_lets_a_statement(
    recorder: Recorder,
) -> None:
    claim = take()
    context = context_of(recorder, claim)

    def show() -> None:
        with connection.cursor() as cursor:
            cursor.execute("SET lock_timeout TO 50")
        context.progress(1)

    shower = threading.Thread(target=lambda: in_thread(show))
    with store.transaction():
        Job.objects.select_for_update().get(pk=claim.id)
        shower.start()
        # For longer than four tries take.
        shower.join(1)
        assert shower.is_alive()
    shower.join(30)
    assert Job.objects.get(pk=claim.id).progress["done"] == 1


def wait_for_lock() -> None:
    """Wait until some connection waits for a lock."""
    waits = (
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )

    def look() -> bool:
        with connection.cursor() as cursor:
            cursor.execute(waits)
            return bool(cursor.fetchone()[0])

    wait_for("a connection to wait for a lock", lambda: elsewhere(look))


def test_a_transaction_that_is_left_open_is_nobodys(recorder: Recorder) -> None:
    claim = take()
    record(recorder, claim, "first")

    def spoil() -> None:
        with recorder.lend():
            connection.set_autocommit(False)
            store.record_checkpoints(connection, [checkpoint(claim, "never committed")])

    in_thread(spoil)
    in_thread(lambda: record(recorder, claim, "second"))
    names = Job.objects.get(pk=claim.id).steps.values_list("name", flat=True)
    assert set(names) == {"first", "second"}


def test_a_connection_that_fails_as_it_is_lent_is_left_to_its_owner(recorder: Recorder) -> None:
    claim = take()
    record(recorder, claim, "first")
    with recorder._shared.if_free() as db:
        assert db is not None
        # As after an error, when it was made anew in the middle of a step.
        del db.connection.durable_brief
        db.connection.execute("BEGIN")
        with pytest.raises(psycopg.Error):
            db.connection.execute("SELECT 1 / 0")

    def borrow() -> bool:
        with recorder.lend() as is_lent:
            return is_lent

    assert in_thread(borrow) is False
    assert not recorder._shared._lock.locked()


def test_an_error_in_the_block_gives_the_connection_back(recorder: Recorder) -> None:
    claim = take()
    record(recorder, claim, "first")

    def fail() -> None:
        with recorder.lend(), store.transaction():
            raise OperationalError

    with pytest.raises(OperationalError):
        in_thread(fail)
    assert in_thread(lambda: record(recorder, claim, "second")) == 0


def test_a_step_can_be_recorded_where_an_event_loop_runs(recorder: Recorder) -> None:
    claim = take()
    record(recorder, claim, "first")

    async def within() -> int:
        return record(recorder, claim, "second")

    assert in_thread(lambda: asyncio.run(within())) == 0
    assert Job.objects.get(pk=claim.id).steps.count() == 2


def test_a_forked_process_does_not_touch_it(recorder: Recorder) -> None:
    record(recorder, take(), "first")
    recorder._shared._pid += 1
    with recorder.lend() as is_lent, recorder._shared.if_free() as db:
        assert not is_lent
        assert db is None


def test_idle_runs_are_woken_together_with_their_answers(recorder: Recorder) -> None:
    """Of many that record at once all get an answer, also where one of them is refused."""
    claims = [take() for _ in range(20)]
    refused: list[str] = []

    def work(place: int) -> None:
        for number in range(10):
            name = "long" * 100 if place == 3 and number == 5 else f"{number}"
            try:
                record(recorder, claims[place], name)
            except Exception as error:  # noqa: BLE001 - looked at below
                refused.append(type(error).__name__)
        connections.close_all()

    threads = [threading.Thread(target=work, args=(place,)) for place in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert refused == ["DataError"]
    counts = [Job.objects.get(pk=claim.id).steps.count() for claim in claims]
    assert counts == [9 if place == 3 else 10 for place in range(20)]
