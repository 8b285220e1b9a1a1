"""A cancel that comes while a workflow is in an atomic step."""

from __future__ import annotations

from typing import Any

import pytest

from django_durable.models import Job
from tests.processes.harness import fresh, wait_for, wait_for_end
from tests.workerapp import tasks


def test_a_cancel_during_an_atomic_step_keeps_the_step_and_ends_the_run_after_it(
    start: Any, notes: Any, folder: str, queue: str, ledger: Any
) -> None:
    job = tasks.pay_slowly.using(queue_name=queue).enqueue(folder)
    worker = start()
    wait_for("the step", lambda: notes.read("inside"))
    # The cancel does not wait for the step, whose transaction is open.
    assert job.cancel("enough") == "requested"
    assert fresh(job).status == "RUNNING"
    notes.let_go("slow")
    (ended,) = wait_for_end(job)
    worker.stop()
    assert (ended.status, ended.cancel_reason) == ("CANCELLED", "enough")
    assert ledger.objects.count() == 1
    assert dict(ended.steps.values_list("name", "status")) == dict.fromkeys(
        ("before", "pay"), "succeeded"
    )
    assert not notes.read("after")


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_a_step_that_ends_after_the_cancel_of_an_async_run_is_recorded_and_taken_back(
    start: Any, notes: Any, folder: str, queue: str, kind: str
) -> None:
    job = tasks.charge_beside_another_branch.using(queue_name=queue).enqueue(folder, kind)
    worker = start()
    wait_for("the thread", lambda: notes.read("hold"))
    if kind == "async":
        notes.let_go("async")
        wait_for("its end", lambda: notes.read("charged"))
    assert job.cancel("enough") == "requested"
    wait_for("the cancellation", lambda: notes.read("told"))
    notes.let_go("charge")
    (ended,) = wait_for_end(job)
    assert (ended.status, ended.cancel_reason) == ("CANCELLED", "enough")
    assert ended.steps.get(name="charge").status == "succeeded"
    (undone,) = wait_for_end(Job.objects.get(metadata__undo=str(job.pk)))
    worker.stop()
    assert undone.status == "SUCCESSFUL"
    assert [note["value"] for note in notes.read("refund")] == ["charge"]
