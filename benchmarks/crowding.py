"""Crowds: many rows that are not for a claim, put beside the jobs that are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from django.db.backends.base.base import BaseDatabaseWrapper

NAME = "crowd.work"
QUEUE = "crowded"
PAST, FUTURE = "-1 hour", "30 days"

# The ids are those of earlier milliseconds, ascending as real ones do.
INSERT = """
INSERT INTO durable_job (
    id, root_id, name, queue_name, priority, status, attempt, max_attempts, epoch, resumed,
    enqueued_at, run_after, due_at, started_at, claimed_at, finished_at, kept_until, return_value,
    lease_until, claimer, worker, concurrency_key, key_held
)
SELECT
    c.id, c.id, %(name)s || CASE WHEN %(types)s > 0 THEN '-' || c.g %% %(types)s ELSE '' END,
    %(queue)s, %(priority)s, %(status)s, c.begun::int, 3, c.begun::int,
    %(status)s = 'WAITING', c.past, c.due, CASE WHEN %(status)s = 'READY' THEN c.due END,
    CASE WHEN c.begun THEN c.past END, CASE WHEN c.begun THEN c.past END,
    CASE WHEN c.ended THEN c.past END, CASE WHEN c.ended THEN c.past + interval '7 days' END,
    CASE WHEN c.ended THEN 'null' END,
    CASE WHEN %(status)s = 'RUNNING' THEN statement_timestamp() + interval '1 day' END,
    CASE WHEN %(status)s = 'RUNNING' THEN gen_random_uuid() END,
    CASE WHEN c.begun THEN 'crowd' END,
    CASE WHEN %(keys)s > 0 THEN 'key-' || c.g %% %(keys)s END,
    %(keys)s > 0 AND %(status)s = 'RUNNING'
FROM (
    SELECT
        (
            lpad(to_hex(extract(epoch FROM v.past)::bigint * 1000), 12, '0')
            || '7' || lpad(to_hex(%(series)s), 3, '0') || '8000' || lpad(to_hex(g), 12, '0')
        )::uuid AS id,
        g, v.past, statement_timestamp() + %(due)s::interval - (%(rows)s - g) * interval '1 ms'
            AS due,
        %(status)s NOT IN ('READY', 'WAITING', 'RUNNING') AS ended,
        %(status)s <> 'READY' AS begun
    FROM generate_series(1, %(rows)s) AS g
    CROSS JOIN LATERAL (
        SELECT statement_timestamp() - (%(rows)s - g + 1) * interval '100 ms' AS past
    ) AS v
) AS c
"""


@dataclass(frozen=True)
class Crowd:
    """Say what rows make up a crowd, and what is done beside."""

    rows_are: str
    columns: dict[str, Any] = field(default_factory=dict)
    more: tuple[str, ...] = ()
    # Rows of a second kind: what holds the first ones up.
    holder: dict[str, Any] = field(default_factory=dict)
    # What the worker knows besides.
    names: frozenset[str] = frozenset()

    def fill(self, db: BaseDatabaseWrapper, rows: int) -> None:
        """Insert the rows, in one statement and unanalyzed."""
        insert(db, rows, **self.columns)
        if self.holder:
            insert(db, **{"rows": 1, "series": 1, **self.holder})
        with db.cursor() as cursor:
            for statement in self.more:
                cursor.execute(statement)


def insert(db: BaseDatabaseWrapper, rows: int, **columns: Any) -> None:
    """Insert rows that differ only in their place."""
    defaults = {
        "name": NAME,
        "queue": QUEUE,
        "priority": 0,
        "status": "READY",
        "due": PAST,
        "keys": 0,
        "types": 0,
        "series": 0,
        "rows": rows,
    }
    with db.cursor() as cursor:
        cursor.execute(INSERT, {**defaults, **columns})


PAUSE = "INSERT INTO durable_queue (name, paused) VALUES ('other', TRUE)"
LIMIT = "INSERT INTO durable_queue (name, max_running) VALUES ('other', 1)"

CROWDS: dict[str, Crowd] = {
    "not-due": Crowd("not due", {"due": FUTURE}),
    "finished": Crowd("finished", {"status": "SUCCESSFUL"}),
    "other-queue": Crowd("of a queue that the worker does not serve", {"queue": "foreign"}),
    "unknown-name": Crowd("of a job type that the worker does not know", {"name": "foreign"}),
    "paused": Crowd("of a paused queue", {"queue": "other"}, (PAUSE,)),
    "lower-priority": Crowd("of a lower priority", {"priority": -10}),
    "waiting": Crowd("waiting for an event", {"status": "WAITING"}),
    "one-key": Crowd("held by one key", {"keys": 1}, holder={"keys": 1, "status": "RUNNING"}),
    "full-queue": Crowd(
        "of a queue at its limit",
        {"queue": "other"},
        (LIMIT,),
        {"queue": "other", "status": "RUNNING"},
    ),
    "keys-not-due": Crowd("each with a key of its own, not due", {"keys": 10**9, "due": FUTURE}),
}
MANY_KEYS = 10_000
MANY_TYPES = 1000
PACED = "INSERT INTO durable_queue (name, rate_limit) VALUES ('other', '1/h')"
STARTED = """
    INSERT INTO durable_start (budget, moment, starts, total, expires_at)
    VALUES ('queue:other', statement_timestamp(), 1, 1, statement_timestamp() + interval '1 hour')
"""
# So many of something else that one look at all of it is longer than a claim.
WIDE_CROWDS: dict[str, Crowd] = {
    "many-keys": Crowd(
        f"held by {MANY_KEYS:,} keys",
        {"keys": MANY_KEYS},
        holder={"rows": MANY_KEYS, "keys": MANY_KEYS, "status": "RUNNING"},
    ),
    "many-types": Crowd(
        f"of {MANY_TYPES:,} other job types that the worker knows, not due",
        {"types": MANY_TYPES, "due": FUTURE},
        names=frozenset(f"{NAME}-{number}" for number in range(MANY_TYPES)),
    ),
    "paced": Crowd("of a queue whose rate is used up", {"queue": "other"}, (PACED, STARTED)),
}

Measure = Callable[[], float]
