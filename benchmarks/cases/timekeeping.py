"""What time costs: idle schedules, sweeps beside work, and a table that has seen many jobs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import LiteralString
from uuid import uuid4

from django.db import connection, connections

from benchmarks.app import jobs
from benchmarks.bench import Bench
from benchmarks.cases.crowds import insert
from benchmarks.cases.resources import tree_pss
from benchmarks.databases import Connection, value
from benchmarks.drains import ASYNC, DEFAULT, Drain
from benchmarks.figures import Figure, Target
from benchmarks.workers import QUEUE, wait_until

LOOKS = 200
# A day passes in some twelve seconds. Autovacuum, which looks once a minute and pauses as it works,
# must make haste too; a second is the shortest that it sleeps, and two hours of such a day.
HURRY = {"autovacuum_naptime": "1s", "autovacuum_vacuum_cost_delay": "0"}
DAY = timedelta(days=1)
KEPT_DAYS = 7
BATCH = 1000
# Two empty tables differ by a fifth in one round, and by three hundredths in the median of nine.
MORE_ROUNDS = 3
NOISE = 0.03
GONE = "SELECT count(*) FROM durable_job WHERE kept_until <= statement_timestamp()"
SIZED = {
    "dead rows, for each live one": "rows",
    "indexes' size": "MiB",
    "table's size": "MiB",
    "passes of autovacuum": "passes",
}
SIZES: LiteralString = """
SELECT
    n_dead_tup / greatest(n_live_tup, 1)::float, pg_indexes_size(relid) / 1048576.0::float,
    pg_table_size(relid) / 1048576.0::float, autovacuum_count::float
FROM pg_stat_user_tables WHERE relname = 'durable_job'
"""


def idle_schedules(bench: Bench) -> Iterator[Figure]:
    """Time a worker's look at schedules, of which none is due, beside a look at ten."""
    from django_durable import firing, store
    from django_durable.models import Schedule

    many = bench.size(10_000, 500)
    names = {"scheduled": many, "few": 10}
    for name, count in names.items():
        bench.databases.use(bench.databases.fresh(name))
        Schedule.objects.bulk_create(
            Schedule(job_name=jobs.noop.name, name=f"tenant-{n}", cron="0 0 1 1 *", args=[n])
            for n in range(count)
        )
        # New ones are planned first, some hundreds at a look.
        while firing.run_due([jobs.noop.name]) == 0:
            pass
        if Schedule.objects.exclude(broken="").exists():
            raise RuntimeError("the schedules are broken, and would not be looked at")
        with connection.cursor() as cursor:
            # Autovacuum does it within a minute of so many changes.
            cursor.execute("VACUUM ANALYZE durable_schedule")

    def look(name: str) -> float:
        bench.databases.use(name)
        firing.run_due([jobs.noop.name])
        started = time.perf_counter()
        for _ in range(LOOKS):
            firing.run_due([jobs.noop.name])
        return (time.perf_counter() - started) / LOOKS * 1000

    # As a worker's thread, whose statements are prepared.
    with ThreadPoolExecutor(1, initializer=store.prepare_in_this_thread) as pool:
        yield bench.compare(
            "schedules",
            f"a worker's look at {many:,} idle schedules",
            lambda: pool.submit(look, "scheduled").result(),
            unit="ms",
            beside={"10 schedules": lambda: pool.submit(look, "few").result()},
            target=Target(at_most={"10 schedules": 1.5}),
        )
        pool.submit(connections.close_all).result()


def sweep(bench: Bench) -> Iterator[Figure]:
    """Drain while the same worker sweeps; then let a worker sweep all, and weigh it."""
    rows = bench.size(1_000_000, 20_000)
    count = bench.size(20_000, 1000)
    database = bench.databases.fresh("swept")
    with bench.databases.connect(database) as db:
        bench.say(f"sweep: inserting {rows:,} rows")
        insert(db, rows, status="SUCCESSFUL", keep="0")
        sweeping = Drain(bench, database, ASYNC)
        resting = Drain(bench, database, replace(ASYNC, flags=("--no-maintenance",)))
        yield bench.compare(
            "sweep",
            f"the async drain while the worker sweeps {rows:,} rows",
            lambda: sweeping.rate(count),
            beside={"no sweep": lambda: resting.rate(count)},
            target=Target(at_least={"no sweep": 0.8}),
        )
        yield from _whole_sweep(bench, db, database)
    bench.databases.drop(database)


def _whole_sweep(bench: Bench, db: Connection, database: str) -> Iterator[Figure]:
    left = value(db, GONE)
    with Drain(bench, database, DEFAULT).worker(db) as worker:
        before = most = tree_pss(worker.pid)
        started = time.monotonic()

        def all_gone() -> bool:
            nonlocal most
            most = max(most, tree_pss(worker.pid))
            return not value(db, "SELECT EXISTS (" + GONE.replace("count(*)", "") + ")")

        wait_until(all_gone, 120 + left / 500, "not all is swept", pause=0.5)
        took = time.monotonic() - started
    yield Figure("sweep", f"one worker's sweep of {left:,} rows", "rows/s", [left / took])
    yield Figure(
        "sweep",
        "PSS of that worker at most",
        "MiB",
        [most],
        {"at its start": [before]},
        Target(at_most={"at its start": 1.1}),
    )


def aged(bench: Bench) -> Iterator[Figure]:
    """Drain on a table that has taken millions of jobs, day by day, each swept after a week."""
    passed = bench.size(5_000_000, 20_000)
    days = bench.size(50, 10)
    count = bench.size(20_000, 1000)
    kept = passed // days * KEPT_DAYS
    old = bench.databases.fresh("aged")
    bench.databases.use(old)
    with bench.databases.settings(**HURRY):
        _live(bench, passed, days)
        with bench.databases.connect(old) as db:
            sizes = _sizes(db)
    drains = {"empty table": Drain(bench, bench.databases.fresh("empty"), ASYNC)}
    young = bench.databases.fresh("young")
    with bench.databases.connect(young) as db:
        insert(db, kept, status="SUCCESSFUL")
    drains["fresh rows"] = Drain(bench, young, ASYNC)
    beside = Drain(bench, old, ASYNC)
    yield replace(bench, rounds=MORE_ROUNDS * bench.rounds).compare(
        "aged",
        f"the async drain after {passed:,} jobs, of which {kept:,} are kept",
        lambda: beside.rate(count),
        "claim+complete",
        beside={name: partial(drain.rate, count) for name, drain in drains.items()},
        target=Target(at_least={"empty table": 1 - NOISE}),
    )
    with bench.databases.connect(old) as db:
        db.execute("VACUUM FULL durable_job")
        anew = _sizes(db)
    bench.databases.drop(old)
    bench.databases.drop(young)
    for what, unit in SIZED.items():
        written = {"written anew": [anew[what]]} if unit == "MiB" else {}
        yield Figure("aged", f"its {what}", unit, [sizes[what]], written)


def _live(bench: Bench, passed: int, days: int) -> None:
    """Let the jobs of so many days be enqueued, claimed, completed and swept, with their clock.

    The last day is today: nothing is left whose time would be over in a drain that comes then.
    """
    from django_durable import store

    scope = store.Scope(frozenset({jobs.noop.name}))
    claims = store.Claims(scope, store.Owner("benchmark", uuid4(), timedelta(seconds=30)))
    job_type = jobs.noop.using(queue_name=QUEUE)
    for day in range(days):
        db = store.connection()
        db.durable_clock_offset = (day + 1 - days) * DAY  # type: ignore[attr-defined]
        store.relax_commits(db)
        left = passed // days
        job_type.enqueue_many(((number,), {}) for number in range(left))
        while left > 0:
            claims.look(db)
            claimed = claims.claim(db, BATCH)
            keep = KEPT_DAYS * DAY
            store.record_successes(
                db, [store.Success((claim.id, claim.epoch), "null", keep) for claim in claimed]
            )
            left -= len(claimed)
        position = store.Position()
        while store.sweep(db, position).more:
            pass
        if day % 5 == 4:
            bench.say(f"aged: day {day + 1} of {days}")
    connection.durable_clock_offset = timedelta(0)  # type: ignore[attr-defined]


def _sizes(db: Connection) -> dict[str, float]:
    """Return what the table has become, by what is measured."""
    db.execute("ANALYZE durable_job")
    return dict(zip(SIZED, db.execute(SIZES).fetchone() or (), strict=True))
