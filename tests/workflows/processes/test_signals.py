"""What real workers tell of checkpoints, of those of isolated runs too."""

from __future__ import annotations

from typing import Any

import pytest

from tests.processes.harness import wait_for, wait_for_end
from tests.workerapp import tasks


@pytest.mark.parametrize("kind", [tasks.step_often, tasks.step_often_isolated])
def test_each_step_that_a_worker_records_is_told_once_and_in_order(
    start: Any, notes: Any, folder: str, queue: str, kind: Any
) -> None:
    made = [kind.using(queue_name=queue).enqueue(5) for _ in range(4)]
    worker = start("--concurrency", "4", SIGNAL_NOTES=folder)
    wait_for_end(*made)
    for job in made:
        wait_for("the end to be told", lambda job=job: notes.read("job_succeeded", job=str(job.pk)))
        told = [
            (note["event"], (note.get("step") or {}).get("name"))
            for note in notes.read(job=str(job.pk))
            if note["event"] in ("step_recorded", "job_succeeded")
        ]
        steps = [("step_recorded", f"step-{number}") for number in range(5)]
        assert told == [*steps, ("job_succeeded", None)]
    worker.stop()
