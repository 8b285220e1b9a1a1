"""A cancel that comes while a workflow is in an atomic step."""

from __future__ import annotations

from typing import Any

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
