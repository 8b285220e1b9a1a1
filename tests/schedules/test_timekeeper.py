"""When a worker looks at its schedules again."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from django_durable import firing, job, signals
from django_durable.jobtypes import registry
from django_durable.models import Job, Schedule
from django_durable.worker.announcer import Announcer
from django_durable.worker.claimtable import ClaimTable
from django_durable.worker.options import WorkerOptions
from django_durable.worker.runs import Runs
from django_durable.worker.timekeeper import Timekeeper


@pytest.fixture
def keeper(monkeypatch: pytest.MonkeyPatch) -> Timekeeper:
    """A timekeeper without a database."""
    monkeypatch.setattr(firing, "reconcile", lambda names, left: [])
    options = WorkerOptions("desk", maintenance=False)
    return Timekeeper(options, Announcer(options, Runs(ClaimTable.create(1), 1)))


def test_half_of_the_time_is_for_claims_while_there_is_much_to_catch_up_with(
    keeper: Timekeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look(names: Sequence[str], ahead: timedelta) -> float:
        time.sleep(0.05)
        return 0

    monkeypatch.setattr(firing, "run_due", look)
    keeper.step()
    left = keeper.next_at - time.monotonic()
    assert keeper.behind
    assert 0.03 < left < 0.2
    keeper.step()
    assert keeper.next_at - time.monotonic() <= left


@pytest.mark.django_db(transaction=True)
def test_receivers_hear_of_runs_from_the_announcer(keeper: Timekeeper) -> None:
    first = job(name="keeper.first")(lambda: None)
    heard: list[Job] = []

    def hear(sender: Any, job: Job, **_: Any) -> None:
        heard.append(job)

    keeper._names = ("keeper.first",)
    Schedule.objects.bulk_create(
        [
            Schedule(job_name="keeper.first", name="first", cron="0 0 1 1 *", run_on_create=True),
            Schedule(job_name="keeper.first", name="tick", every=timedelta(days=1)),
        ]
    )
    signals.job_enqueued.connect(hear)
    try:
        keeper.step()
        assert heard == []
        # A thread of its own does that in a worker.
        keeper._announcer._step()
        assert len(heard) == 2
        assert set(heard) == set(Job.objects.all())
    finally:
        signals.job_enqueued.disconnect(hear)
        registry.remove(first)
