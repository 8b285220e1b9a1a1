"""The memory of a worker over many jobs, with the debugging of Django, which keeps all queries."""

from __future__ import annotations

from pathlib import Path
from statistics import median

import pytest

from django_durable.models import Job
from tests.processes.harness import wait_for
from tests.workerapp import jobs


def weight(worker) -> float:
    """Return the memory of their own that a worker's processes have, in MiB.

    Their share of common libraries depends on which other processes use them, too.
    """
    total = 0
    for pid in worker.family():
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        total += next(int(line.split()[1]) for line in lines if line.startswith("Anonymous:"))
    return total / 1024


def run_many(queue, count: int) -> None:
    """Run so many jobs: plain ones, async ones, ones that use the database, and failing ones."""
    kinds = [(jobs.echo, ("x" * 100,)), (jobs.async_noop, ()), (jobs.session, ())]
    for job_type, args in kinds:
        job_type.using(queue_name=queue).enqueue_many([(args, {})] * (count // 4))
    jobs.raising.using(queue_name=queue).enqueue_many([(("ValueError",), {})] * (count // 4))
    left = Job.objects.in_queue(queue).exclude(status__in=["SUCCESSFUL", "DEAD"])
    wait_for("the jobs to end", lambda: not left.exists(), patience=200)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("rounds", "size"), [(5, 1200), pytest.param(10, 5000, marks=pytest.mark.stress)]
)
def test_memory_is_flat_over_many_jobs(start, queue, rounds, size):
    worker = start("-v", "0", "--no-reload", "--concurrency", "8", DEBUG="true")
    # What a backlog of this size takes, it takes at the beginning: all is there after the second.
    for _ in range(2):
        run_many(queue, size)
    weights = [weight(worker)]
    for _ in range(rounds):
        run_many(queue, size)
        weights.append(weight(worker))

    # When the allocator gives pages back is its own affair: one look may find a tenth less or more.
    before, after = median(weights[:3]), median(weights[-3:])
    assert after <= 1.05 * before, [round(mib, 1) for mib in weights]
    worker.stop()
