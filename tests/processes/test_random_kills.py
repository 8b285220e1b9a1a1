"""Kills at moments of chance, many of them, under load: the books of all jobs must balance."""

from __future__ import annotations

import os
import random
import signal
from collections import Counter
from contextlib import suppress
from datetime import datetime, timedelta

import pytest
from django.utils import timezone

from django_durable.models import Attempt, DeadLetter, Job
from tests.processes.harness import wait_for
from tests.workerapp import jobs

LEASE = 2.0


class Massacre:
    """Keep some workers busy, and kill them in all ways."""

    def __init__(self, start, notes, queue, seed: int) -> None:
        self.start = start
        self.notes = notes
        self.queue = queue
        self.random = random.Random(seed)  # noqa: S311
        self.workers = {}
        for _ in range(3):
            self.add_worker()
        self.made = 0
        self.killed: dict[str, datetime] = {}

    def add_worker(self) -> None:
        name = f"worker {self.random.getrandbits(32)}"
        flags = ("--name", name, "--lease", f"{LEASE:g}s", "--concurrency", "4", "-v", "0")
        self.workers[name] = self.start(*flags)

    def enqueue_up_to(self, backlog: int) -> None:
        """Let there be so many unfinished jobs: plain and async ones, some of which fail once."""
        folder = str(self.notes.folder)
        for _ in range(backlog - self.unfinished()):
            self.made += 1
            kind = self.random.choice([jobs.work, jobs.async_work, jobs.work_flakily])
            call = kind.using(queue_name=self.queue, max_attempts=None)
            call.enqueue(folder, f"job-{self.made}", self.random.choice([0.0, 0.02, 0.2, 0.5]))

    def kill_one(self) -> None:
        """Kill a child, a supervisor or a whole worker that is busy; there are three again."""
        busy = wait_for("a busy worker", self.busy)
        self.rest()
        name = self.random.choice(busy)
        worker = self.workers[name]
        how = self.random.choice(["supervisor", "all", "child", "child"])
        pids = {"child": worker.children(), "supervisor": [worker.pid], "all": worker.family()}
        for pid in pids[how]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if how != "child":
            worker.process.wait()
            self.killed[name] = timezone.now()
            del self.workers[name]
            self.add_worker()

    def busy(self) -> list[str]:
        """Return the names of the living workers that run jobs."""
        names = Job.objects.in_queue(self.queue).running().values_list("worker", flat=True)
        return sorted(set(names) & set(self.workers))

    def rest(self) -> None:
        """Let a moment of chance pass, at most a tenth of a second."""
        until = self.notes.now() + self.random.random() / 10
        wait_for("the moment", lambda: self.notes.now() >= until)

    def unfinished(self) -> int:
        """Return how many jobs have not ended."""
        return Job.objects.in_queue(self.queue).exclude(status="SUCCESSFUL").count()


def balance(notes, queue) -> None:
    """See that rows, attempts and the jobs' own notes tell one story."""
    ended = Job.objects.in_queue(queue)
    assert set(ended.values_list("status", flat=True)) == {Job.Status.SUCCESSFUL}
    runs = Counter((note["label"], note["attempt"]) for note in notes.read("start"))
    # No attempt ran twice: each start is under a number of its own.
    assert set(runs.values()) == {1}
    finished = Counter(note["label"] for note in notes.read("end"))
    for job in ended.prefetch_related("attempts"):
        label = job.args[1]
        numbers = [attempt.number for attempt in job.attempts.all()]
        # The last one succeeded and has no row; all others have one each.
        assert numbers == list(range(1, job.attempt))
        assert finished[label] >= 1
        assert job.return_value == label
        outcomes = {attempt.outcome for attempt in job.attempts.all()}
        assert outcomes <= {"lost", "failed"}
    assert not DeadLetter.objects.filter(job__in=ended).exists()
    assert not ended.filter(lease_until__isnull=False).exists()


def massacre(start, notes, queue, kills: int, seed: int) -> None:
    them = Massacre(start, notes, queue, seed)
    try:
        for _ in range(kills):
            them.enqueue_up_to(40)
            them.kill_one()
        wait_for("all jobs to succeed", lambda: not them.unfinished(), 60)
        balance(notes, queue)
        # Most kills cost somebody an attempt. Who rescues may have to start first.
        lost = Attempt.objects.filter(job__queue_name=queue, outcome="lost")
        assert lost.count() > kills / 2
        for attempt in lost.filter(worker__in=them.killed):
            found_after = attempt.finished_at - them.killed[attempt.worker]
            assert found_after < timedelta(seconds=LEASE + 2 + 8)
    except AssertionError as error:
        raise AssertionError(f"seed {seed}: {error}") from error
    for worker in them.workers.values():
        worker.stop()


def test_kills_at_random_moments_lose_and_double_nothing(start, notes, queue):
    massacre(start, notes, queue, kills=25, seed=random.randrange(10**6))  # noqa: S311


@pytest.mark.stress
@pytest.mark.parametrize("seed", range(10))
def test_five_hundred_kills_lose_and_double_nothing(start, notes, queue, seed):
    massacre(start, notes, queue, kills=50, seed=seed)
