"""How fast one worker is beside a million rows that are not for it, or an old snapshot."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from benchmarks.app import jobs
from benchmarks.bench import Bench
from benchmarks.databases import Connection
from benchmarks.drains import ASYNC, Drain
from benchmarks.figures import Figure, Target
from benchmarks.workers import QUEUE, WARM_UP

# The ids are those of earlier milliseconds, ascending as real ones do.
INSERT = """
INSERT INTO durable_job (
    id, root_id, name, queue_name, priority, args, status, attempt, max_attempts,
    enqueued_at, run_after, due_at, started_at, claimed_at, finished_at, kept_until, return_value
)
SELECT
    c.id, c.id, %(name)s, %(queue)s, %(priority)s, '[1]', %(status)s, c.ended::int, 3,
    c.past, c.due, CASE WHEN NOT c.ended THEN c.due END,
    CASE WHEN c.ended THEN c.past END, CASE WHEN c.ended THEN c.past END,
    CASE WHEN c.ended THEN c.past END, CASE WHEN c.ended THEN c.past + %(keep)s::interval END,
    CASE WHEN c.ended THEN 'null' END
FROM (
    SELECT
        (
            lpad(to_hex(extract(epoch FROM v.past)::bigint * 1000), 12, '0')
            || '70008000' || lpad(to_hex(g), 12, '0')
        )::uuid AS id,
        v.past,
        v.past + %(delay)s::interval AS due,
        %(status)s = 'SUCCESSFUL' AS ended
    FROM generate_series(1, %(rows)s) AS g
    CROSS JOIN LATERAL (
        SELECT statement_timestamp() - (%(rows)s - g + 1) * interval '100 ms' AS past
    ) AS v
) AS c
"""


def _beside(
    bench: Bench, case: str, rows_are: str, flags: tuple[str, ...] = (), **crowd: object
) -> Iterator[Figure]:
    rows = bench.size(1_000_000, 20_000)
    count = bench.size(20_000, 1000)
    empty = bench.databases.fresh("empty")
    crowded = bench.databases.fresh("crowded")
    load = replace(ASYNC, flags=flags)
    with bench.databases.connect(crowded) as db:
        bench.say(f"{case}: inserting {rows:,} rows")
        insert(db, rows, **crowd)
    alone, beside = Drain(bench, empty, load), Drain(bench, crowded, load)
    yield bench.compare(
        case,
        f"the async drain beside {rows:,} rows {rows_are}",
        lambda: beside.rate(count),
        "claim+complete",
        beside={"empty table": lambda: alone.rate(count)},
        target=Target(at_least={"empty table": 0.85}),
    )
    bench.databases.drop(crowded)


def insert(db: Connection, rows: int, **crowd: object) -> None:
    """Insert rows that differ in their place only, and let the server know them."""
    defaults = {
        "name": jobs.noop_async.name,
        "queue": QUEUE,
        "priority": 0,
        "status": "READY",
        "delay": "0",
        "keep": "7 days",
        "rows": rows,
    }
    if crowd.get("status", "READY") == "READY":
        # Not to be claimed before the drain begins.
        db.execute("INSERT INTO durable_queue (name, paused) VALUES (%s, TRUE)", [QUEUE])
    db.execute(INSERT, {**defaults, **crowd})
    db.execute("VACUUM ANALYZE durable_job")
    db.execute("CHECKPOINT")


def not_due(bench: Bench) -> Iterator[Figure]:
    """Drain beside rows of the same queue and job type that are due much later."""
    yield from _beside(bench, "beside-not-due", "not due", delay="30 days")


def lower_priority(bench: Bench) -> Iterator[Figure]:
    """Drain beside due rows of the same queue and job type, of a lower priority."""
    yield from _beside(bench, "beside-lower-priority", "of lower priority", priority=-10)


def finished(bench: Bench) -> Iterator[Figure]:
    """Drain beside rows of the same queue and job type that have ended."""
    yield from _beside(bench, "beside-finished", "finished", status="SUCCESSFUL")


def other_queue(bench: Bench) -> Iterator[Figure]:
    """Drain beside due rows of a queue that the worker does not serve."""
    flags = ("--queue-name", f"{QUEUE},{WARM_UP}")
    yield from _beside(bench, "beside-other-queue", "of another queue", flags, queue="other")


def held_transaction(bench: Bench) -> Iterator[Figure]:
    """Drain after many jobs that an open transaction's snapshot keeps vacuum from cleaning up."""
    passed = bench.size(200_000, 5000)
    count = bench.size(20_000, 1000)
    alone = Drain(bench, bench.databases.fresh("empty"), ASYNC)
    held = bench.databases.fresh("held")
    beside = Drain(bench, held, ASYNC)
    with bench.databases.connect(held) as snapshot, bench.databases.connect(held) as db:
        snapshot.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        snapshot.execute("SELECT 1")
        bench.say(f"beside-transaction: {passed:,} jobs go first")
        waiting = beside.fill(db, passed)
        with beside.worker(db) as worker:
            beside.drain(db, worker, waiting)
        yield bench.compare(
            "beside-transaction",
            f"the async drain after {passed:,} jobs with a transaction open since before",
            lambda: beside.rate(count),
            "claim+complete",
            beside={"empty table": lambda: alone.rate(count)},
            target=Target(at_least={"empty table": 0.7}),
        )
        snapshot.execute("ROLLBACK")
    bench.databases.drop(held)
