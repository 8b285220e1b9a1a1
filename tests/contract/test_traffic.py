"""Contract, sections 2 and 8: rates, kept keys, and what starts in time or never."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection

from django_durable import Backoff, JobContext, OnDuplicate, PermanentFailure, job, step, workflow
from django_durable.jobtypes import JobType
from django_durable.models import Job, Start
from tests.contract.running import Runner, run
from tests.workflows.driving import fresh, go

pytestmark = pytest.mark.django_db

MINUTE = timedelta(minutes=1)
AT_ONCE = Backoff(initial=timedelta(0), jitter=0.0)


@pytest.fixture(autouse=True)
def clock() -> Any:
    """Give the clock back that a test has moved."""
    yield
    connection.durable_clock_offset = timedelta(0)  # type: ignore[attr-defined]


def advance(step_: timedelta) -> None:
    before = getattr(connection, "durable_clock_offset", timedelta(0))
    connection.durable_clock_offset = before + step_  # type: ignore[attr-defined]


def cancel_late() -> None:
    from django_durable import operations, store

    store.cancel_late(connection, keep=operations.current_keep(), limit=100)


def test_a_rate_is_the_job_type_s_whatever_its_names_and_queues() -> None:
    @job(rate_limit="3/m", name="new-name", aliases=["old-name"])
    def call() -> None: ...

    for _ in range(2):
        call.enqueue()
        call.using(queue_name="other").enqueue()
        Job.all_objects.filter(pk=call.enqueue().pk).update(name="old-name")

    assert len(Runner(call).run()) == 3
    assert Runner(call).run() == []
    advance(MINUTE)
    assert len(Runner(call).run()) == 3


def test_a_rate_under_a_key_is_the_key_s_across_job_types() -> None:
    options: dict[str, Any] = {"rate_limit": "2/m", "concurrency_limit": None}

    @job(concurrency_key=lambda tenant: tenant, **options)
    def read(tenant: str | None) -> None: ...

    @job(concurrency_key=lambda tenant: tenant, **options)
    def write(tenant: str | None) -> None: ...

    for tenant in ("a", "b", None):
        for kind in (read, write):
            kind.enqueue_many([((tenant,), {})] * 2)

    started = [ran.concurrency_key for ran in Runner(read, write).run()]
    started += [ran.concurrency_key for ran in Runner(read, write).run()]
    # Without a key it is that of each type.
    assert sorted(started, key=str) == [None] * 4 + ["a"] * 2 + ["b"] * 2


def test_retries_count_and_a_parked_workflow_goes_on_without_a_start() -> None:
    @workflow(rate_limit="2/m", backoff=AT_ONCE)
    def flow(context: JobContext, fails: bool) -> None:
        if fails:
            raise ValueError
        context.wait_for_signal("go")

    parked, failed = flow.enqueue(False), flow.enqueue(True)
    assert len(Runner(flow).run()) == 2
    flow.enqueue_many([((False,), {})] * 5)
    parked.signal("go")

    assert [ran.pk for ran in Runner(flow).run()] == [parked.pk]
    assert fresh(parked).status == "SUCCESSFUL"
    assert (fresh(failed).status, fresh(failed).attempt) == ("READY", 1)
    advance(MINUTE)
    assert len(Runner(flow).run()) == 2


def test_only_what_has_a_rate_is_logged() -> None:
    @job
    def plain() -> None: ...

    @job(concurrency_key="k")
    def keyed() -> None: ...

    plain.enqueue()
    keyed.enqueue()
    assert len(Runner(plain, keyed).run()) == 2
    assert not Start.objects.exists()


def keeper(**options: Any) -> JobType:
    @workflow(concurrency_key="k", backoff=AT_ONCE, **options)
    def flow(context: JobContext) -> str:
        context.wait_for_signal("go", timeout=MINUTE)
        return "done"

    return flow


@pytest.mark.parametrize("end", ["signal", "timeout", "cancel"])
def test_a_parked_holder_keeps_its_key_until_its_end(end: str) -> None:
    flow = keeper(hold_key_while_parked=True)
    first, second = flow.enqueue(), flow.enqueue()
    go(flow)
    assert [fresh(one).status for one in (first, second)] == ["WAITING", "READY"]
    if end == "signal":
        first.signal("go")
    elif end == "timeout":
        advance(2 * MINUTE)
    else:
        first.cancel()
    go(flow)
    expected = {"signal": "SUCCESSFUL", "timeout": "DEAD", "cancel": "CANCELLED"}[end]
    assert [fresh(one).status for one in (first, second)] == [expected, "WAITING"]


def test_without_it_a_parked_holder_lets_its_key_go_and_waits_for_it_again() -> None:
    flow = keeper()

    @job(concurrency_key="k")
    def other() -> None: ...

    parked = flow.enqueue()
    go(flow)
    other.enqueue()
    parked.signal("go")
    runner = Runner(flow, other)
    first = runner.claim()
    assert len(first) == 1
    assert runner.claim() == []


@job(start_within=MINUTE)
def prompt() -> None:
    """Start soon or never."""


def test_what_has_not_started_in_time_is_cancelled() -> None:
    late, scheduled = prompt.enqueue(), prompt.using(run_after=2 * MINUTE).enqueue()
    advance(MINUTE)
    assert Runner(prompt).run() == []
    cancel_late()
    late = fresh(late)
    assert (late.status, late.cancel_reason, late.attempts.count()) == (
        *("CANCELLED", "not started in time", 0),
    )
    assert fresh(scheduled).status == "READY"
    advance(1.5 * MINUTE)
    assert run(scheduled).status == "SUCCESSFUL"


def test_a_replacement_takes_its_time_anew() -> None:
    first = prompt.using(idempotency_key="i").enqueue()
    advance(0.9 * MINUTE)
    second = prompt.using(idempotency_key="i", on_duplicate=OnDuplicate.REPLACE).enqueue()
    advance(0.9 * MINUTE)
    cancel_late()
    assert first.pk == second.pk
    assert run(second).status == "SUCCESSFUL"


def undo(value: Any) -> None:
    UNDONE.append(value)


UNDONE: list[Any] = []


def test_what_was_done_is_taken_back_however_late() -> None:
    UNDONE.clear()

    @step(compensate=undo)
    def pay() -> str:
        return "paid"

    @workflow(start_within=MINUTE)
    def flow(context: JobContext) -> None:
        context.step("pay", pay)
        raise PermanentFailure

    assert run(flow.enqueue()).status == "DEAD"
    advance(10 * MINUTE)
    cancel_late()
    go(flow)
    assert UNDONE == ["paid"]
