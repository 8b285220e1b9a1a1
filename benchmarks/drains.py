"""Time how fast a worker that is up and idle gets through jobs that become visible at once.

The jobs wait in a paused queue. When every slot of the worker has been seen at work, the queue is
resumed. The window is the database's: from the first `started_at` to the last `finished_at`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from benchmarks.app import jobs
from benchmarks.bench import Bench
from benchmarks.databases import Connection, value
from benchmarks.workers import (
    QUEUE,
    WARM_UP,
    Worker,
    WorkerFailed,
    pause_queue,
    resume_queue,
    wait_until,
)

WINDOW = """
SELECT count(*), extract(epoch FROM max(finished_at) - min(started_at))::float
FROM durable_job WHERE id BETWEEN %s AND %s AND status = 'SUCCESSFUL'
"""
# No EXISTS: the planner thinks to find one soon, and reads a big table from its beginning.
UNFINISHED = """
SELECT count(*) FROM durable_job WHERE id BETWEEN %s AND %s AND finished_at IS NULL
"""


@dataclass(frozen=True)
class Load:
    """Say which jobs run on what worker."""

    job_type: Any
    hold: Any
    concurrency: int
    processes: int = 1
    flags: tuple[str, ...] = ()

    @property
    def slots(self) -> int:
        """Return how many jobs run at once."""
        return self.concurrency * self.processes


ASYNC = Load(jobs.noop_async, jobs.hold_async, 200)
THREADS = Load(jobs.noop, jobs.hold, 200)
DEFAULT = Load(jobs.noop, jobs.hold, 10)


@dataclass(frozen=True)
class Waiting:
    """Hold jobs that wait in the paused queue; the ids of one process ascend."""

    first: UUID
    last: UUID
    count: int


class Drain:
    """Run drains on one database, and leave it as it was."""

    def __init__(self, bench: Bench, database: str, load: Load) -> None:
        self._bench = bench
        self._database = database
        self._load = load

    def rate(self, count: int) -> float:
        """Fill the queue, drain it with a fresh worker, and return jobs a second."""
        with self._bench.databases.connect(self._database) as db:
            waiting = self.fill(db, count)
            with self.worker(db) as worker:
                rate = self.drain(db, worker, waiting)
            self.clear(db, waiting)
        return rate

    def fill(self, db: Connection, count: int) -> Waiting:
        """Enqueue jobs in the paused queue."""
        pause_queue(db)
        self._bench.databases.use(self._database)
        made = self._load.job_type.using(queue_name=QUEUE).enqueue_many(
            ((number,), {}) for number in range(count)
        )
        db.execute("VACUUM ANALYZE durable_job")
        return Waiting(made[0].pk, made[-1].pk, count)

    @contextmanager
    def worker(self, db: Connection) -> Iterator[Worker]:
        """Run a worker for the load, at full strength when the block begins."""
        load = self._load
        self._bench.databases.use(self._database)
        flags = load.flags
        if load.processes > 1:
            flags = (*flags, "--processes", str(load.processes))
        url = self._bench.databases.url(self._database)
        # A worker that is to serve it starts before its first job.
        resume_queue(db, WARM_UP)
        with Worker(url, load.concurrency, flags) as worker:
            worker.warm_up(db, load.hold, load.slots)
            yield worker

    def drain(self, db: Connection, worker: Worker, waiting: Waiting) -> float:
        """Resume the queue, wait until its last job has ended, and return jobs a second."""
        resume_queue(db)
        # One transaction for all questions: each is one row by its key, and none is a commit.
        with db.transaction():
            self._wait_for_last(db, worker, waiting)
        pause_queue(db)
        row = db.execute(WINDOW, [waiting.first, waiting.last]).fetchone()
        if row is None or row[0] != waiting.count:
            raise WorkerFailed(f"of {waiting.count} jobs {row and row[0]} have succeeded")
        return float(waiting.count / row[1])

    def _wait_for_last(self, db: Connection, worker: Worker, waiting: Waiting) -> None:
        def has_ended() -> bool:
            worker.check()
            found = value(db, "SELECT finished_at FROM durable_job WHERE id = %s", [waiting.last])
            return found is not None

        def have_all_ended() -> bool:
            return value(db, UNFINISHED, [waiting.first, waiting.last]) == 0

        seconds = 60 + waiting.count / 100
        wait_until(has_ended, seconds, "the last job has not ended")
        wait_until(have_all_ended, 60, "some jobs have not ended")

    def clear(self, db: Connection, waiting: Waiting) -> None:
        """Take the drained jobs away."""
        if value(db, "SELECT EXISTS (SELECT FROM durable_job WHERE id < %s)", [waiting.first]):
            db.execute("DELETE FROM durable_job WHERE id >= %s", [waiting.first])
            db.execute("VACUUM ANALYZE durable_job")
        else:
            db.execute("TRUNCATE durable_job CASCADE")
