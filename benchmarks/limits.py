"""What this machine and this PostgreSQL can do at most, in bare psycopg on narrow tables.

`narrow_job` has the least that a queue can do with: an order, a queue, when it is due, the
arguments, and an index for claims.

A figure of a queue says little without them: they are measured in the same run, in turn with it.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from benchmarks.databases import Connection, Databases

DATABASE = "limits"
BATCH = 100

TABLES = """
CREATE TABLE narrow_row (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, args text NOT NULL);
CREATE TABLE narrow_job (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    queue text NOT NULL,
    state smallint NOT NULL DEFAULT 0,
    due timestamptz NOT NULL DEFAULT now(),
    args text NOT NULL
);
CREATE INDEX narrow_job_ready ON narrow_job (queue, due, id) WHERE state = 0;
"""
CLAIM = """
WITH picked AS MATERIALIZED (
    SELECT id FROM narrow_job
    WHERE queue = 'default' AND state = 0 AND due <= now()
    ORDER BY due, id LIMIT %s FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE narrow_job AS j SET state = 1 FROM picked WHERE j.id = picked.id RETURNING j.id, j.args
"""
COMPLETE = "UPDATE narrow_job SET state = 2 WHERE id = ANY(%s) AND state = 1"


class Limits:
    """Measure the limits, each on one connection with the server's durability as it is."""

    def __init__(self, databases: Databases, quick: bool) -> None:
        self._db = databases.connect(databases.make(DATABASE))
        self._db.execute(TABLES)
        self._scale = 10 if quick else 1
        self.all: dict[str, Callable[[], float]] = {
            "commits": self.commits,
            "claim+complete": self.claims,
            "copy": self.copy,
        }

    def commits(self) -> float:
        """Return single-row commits a second: INSERT of one narrow row, autocommit."""
        count = 2000 // self._scale
        return self._rate(count, lambda db: _insert_singly(db, count))

    def claims(self) -> float:
        """Return jobs a second, claimed and completed by 100 in two commits per 100."""
        count = 20_000 // self._scale
        self._db.execute("TRUNCATE narrow_job")
        self._db.execute(
            "INSERT INTO narrow_job (queue, args)"
            " SELECT 'default', '[1]' FROM generate_series(1, %s)",
            [count],
        )
        self._db.execute("VACUUM ANALYZE narrow_job")
        return self._rate(count, _claim_and_complete)

    def copy(self) -> float:
        """Return rows a second by COPY into the table that `claims` uses, in one commit."""
        count = 20_000 // self._scale
        self._db.execute("TRUNCATE narrow_job")
        return self._rate(count, lambda db: _copy(db, count))

    def close(self) -> None:
        """Close the connection."""
        self._db.close()

    def _rate(self, count: int, work: Callable[[Connection], None]) -> float:
        started = time.perf_counter()
        work(self._db)
        return count / (time.perf_counter() - started)


def _insert_singly(db: Connection, count: int) -> None:
    for number in range(count):
        db.execute("INSERT INTO narrow_row (args) VALUES (%s)", [f"[{number}]"])


def _claim_and_complete(db: Connection) -> None:
    while claimed := db.execute(CLAIM, [BATCH]).fetchall():
        db.execute(COMPLETE, [[row[0] for row in claimed]])


def _copy(db: Connection, count: int) -> None:
    with db.cursor() as cursor, cursor.copy("COPY narrow_job (queue, args) FROM STDIN") as copy:
        for number in range(count):
            copy.write_row(("default", f"[{number}]"))
