"""The Django signal `step_recorded`: each checkpoint once it is final, after its commit."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from django_durable import JobContext, PermanentFailure, SignalTimeout, signals, step, workflow
from django_durable.jobtypes import registry
from django_durable.models import Job
from tests.contract.running import Runner
from tests.workflows.driving import AT_ONCE, FlakyError, checkpoints, context_of, go, steal

pytestmark = [
    pytest.mark.usefixtures("committed"),
    pytest.mark.django_db(transaction=True),
]


@pytest.fixture
def heard() -> Iterator[list[Any]]:
    """What a receiver of `step_recorded` was sent; it sees that all is committed."""
    heard: list[Any] = []

    def receive(sender: type[Job], job: Job, step: Any, **_: Any) -> None:
        assert sender is Job
        assert not transaction.get_connection().in_atomic_block
        assert step.pk is not None
        assert step.job is job
        heard.append((step.kind, step.name, step.status))

    signals.step_recorded.connect(receive)
    yield heard
    signals.step_recorded.disconnect(receive)


@workflow
def leaf(context: JobContext) -> int:
    """Return one."""
    return 1


def fail() -> None:
    """Fail for good."""
    raise PermanentFailure("no use")


def test_each_checkpoint_is_told_once_it_is_final(heard: list[Any], advance: Any) -> None:
    tries = []

    @step(max_attempts=3, backoff=AT_ONCE)
    def flaky() -> int:
        tries.append(1)
        if len(tries) == 1:
            raise FlakyError
        return len(tries)

    @workflow
    def flow(context: JobContext) -> None:
        context.step("step", len, "abc")
        context.step("flaky", flaky)
        context.atomic_step("atomic", len, "abc")
        context.now("now")
        context.patched("patch")
        context.gather(context.start_many("child", leaf, [((), {}), ((), {})]))
        context.sleep("sleep", timedelta(hours=1))
        with pytest.raises(SignalTimeout):
            context.wait_for_signal("word", timeout=0)
        with pytest.raises(PermanentFailure):
            context.step("failing", fail)

    job = flow.enqueue()
    go(flow, leaf)
    assert ("sleep", "sleep", "succeeded") not in heard
    advance(timedelta(hours=1))
    go(flow, leaf)
    assert heard == checkpoints(job)
    assert len(heard) == 10


def test_what_is_rolled_back_or_not_recorded_is_not_told(heard: list[Any]) -> None:
    @workflow
    def flow(context: JobContext) -> None:
        with pytest.raises(FlakyError):
            context.atomic_step("undone", undone)
        context.step("lost", steal, context.job.pk)

    def undone() -> None:
        raise FlakyError

    job = flow.enqueue()
    Runner(flow).run()
    assert checkpoints(job) == []
    assert heard == []


def test_a_receiver_that_fails_changes_nothing() -> None:
    def receive(**_: Any) -> None:
        raise FlakyError

    @workflow
    def flow(context: JobContext) -> int:
        return context.step("step", len, "abc") + context.atomic_step("atomic", len, "abc")

    signals.step_recorded.connect(receive)
    try:
        job = flow.enqueue()
        go(flow)
    finally:
        signals.step_recorded.disconnect(receive)
    job.refresh_from_db()
    assert job.return_value == 6


def test_it_costs_nothing_while_nobody_listens() -> None:
    @workflow
    def flow(context: JobContext) -> None: ...

    flow.enqueue()
    context = context_of(Runner(flow).take())
    context.step("first", len, "abc")
    with CaptureQueriesContext(connection) as queries:
        context.step("second", len, "abc")
    assert len(queries) == 1


def test_after_a_rename_a_signal_by_key_goes_to_the_job_that_lives() -> None:
    @workflow(name="signals.old")
    def old(context: JobContext) -> Any:
        return context.wait_for_signal("word")

    first = old.using(idempotency_key="k").enqueue()
    registry.remove(old)

    @workflow(name="signals.new", aliases=["signals.old"])
    def new(context: JobContext) -> Any:
        return context.wait_for_signal("word")

    second = new.using(idempotency_key="k").enqueue()
    assert new.signal("k", "word", 2)
    assert (first.signals.count(), second.signals.get().payload) == (0, 2)
    second.cancel()
    assert new.signal("k", "word", 1)
    assert first.signals.get().payload == 1
    first.cancel()
    assert not new.signal("k", "word", 3)
    with pytest.raises(Job.DoesNotExist):
        new.signal("l", "word")
