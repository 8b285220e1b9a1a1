"""What a worker uses: commits for each job, and memory."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.bench import Bench, Skipped
from benchmarks.databases import value
from benchmarks.drains import ASYNC, DEFAULT, Drain
from benchmarks.figures import Figure, Target
from benchmarks.workers import ROOT, environment

# A server process hands its counts on at the end of a transaction, a second after the last time
# at the soonest; an idle worker's polls make it do so.
COUNTED_WITHIN = 2.5
COUNT = "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = %s"
SETTLED_WITHIN = 3.0

_BARE = (
    "import sys, django; django.setup();"
    "from django.db import connection; connection.ensure_connection();"
    "print('up', flush=True); sys.stdin.read()"
)


def commits(bench: Bench) -> Iterator[Figure]:
    """Count the transactions of a whole drain, the worker's end and idle polls included."""
    count = bench.size(2000, 500)
    drain = Drain(bench, bench.databases.fresh("draining"), ASYNC)
    values = [_commits_per_job(bench, drain, count) for _ in range(bench.rounds)]
    yield Figure(
        "commits",
        f"commits per job, async drain of {count:,} at --concurrency 200",
        "commits/job",
        values,
        target=Target(value_at_most=0.1),
    )


def _commits_per_job(bench: Bench, drain: Drain, count: int) -> float:
    with bench.databases.connect("draining") as db, bench.databases.connect("postgres") as other:
        waiting = drain.fill(db, count)
        with drain.worker(db) as worker:
            time.sleep(COUNTED_WITHIN)
            before = value(other, COUNT, ["draining"])
            drain.drain(db, worker, waiting)
        after = value(other, COUNT, ["draining"])
        drain.clear(db, waiting)
    return float((after - before) / count)


def memory(bench: Bench) -> Iterator[Figure]:
    """Weigh an idle worker, and again after many jobs."""
    if not Path("/proc/self/smaps_rollup").exists():
        raise Skipped("this system has no /proc/*/smaps_rollup")
    count = bench.size(50_000, 1000)
    database = bench.databases.fresh("draining")
    drain = Drain(bench, database, DEFAULT)
    idle, later, bare = [], [], []
    for _ in range(bench.rounds):
        bare.append(_bare_process(bench, database))
        with bench.databases.connect(database) as db:
            waiting = drain.fill(db, count)
            with drain.worker(db) as worker:
                time.sleep(SETTLED_WITHIN)
                idle.append(tree_pss(worker.pid))
                drain.drain(db, worker, waiting)
                time.sleep(SETTLED_WITHIN)
                later.append(tree_pss(worker.pid))
            drain.clear(db, waiting)
    yield Figure(
        "memory",
        "PSS of an idle worker: supervisor and one child",
        "MiB",
        idle,
        {"one process of the project": bare},
        Target(value_at_most=110),
    )
    yield Figure(
        "memory",
        f"the same after {count:,} jobs",
        "MiB",
        later,
        {"idle": idle},
        Target(at_most={"idle": 1.05}),
    )


def _bare_process(bench: Bench, database: str) -> float:
    """Weigh a process that has only set Django up and connected."""
    with subprocess.Popen(
        [sys.executable, "-c", _BARE],
        env=environment(bench.databases.url(database)),
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        if process.stdout is not None:
            process.stdout.readline()
        weight = tree_pss(process.pid)
        process.communicate()
    return weight


def tree_pss(pid: int) -> float:
    """Return the proportional set size of a process and its descendants, in MiB."""
    folder = Path("/proc") / str(pid)
    lines = (folder / "smaps_rollup").read_text().splitlines()
    own = next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    children = {
        int(child)
        for task in (folder / "task").iterdir()
        for child in (task / "children").read_text().split()
    }
    return own / 1024 + sum(tree_pss(child) for child in children)
