"""Ask PostgreSQL how it runs the statements of the store: planned for good, and for this once."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from django.db import connection, transaction
from psycopg import ClientCursor

from django_durable import faults
from django_durable.store import base
from django_durable.uuid7 import uuid7

INSERTS = {"enqueue", "enqueue_plain", "enqueue_many", "birth", "replay"}
Call = tuple[str, dict[str, Any]]
Node = dict[str, Any]


@contextmanager
def watched() -> Iterator[list[Call]]:
    """Note each statement that the store runs in the block, with its parameters."""
    calls: list[Call] = []
    names: list[str] = []

    def note(execute: Callable[..., Any], query: str, params: Any, many: bool, context: Any) -> Any:
        if names and isinstance(params, dict) and query == base.sql(names[-1]):
            calls.append((names[-1], params))
        return execute(query, params, many, context)

    before, faults.hook = faults.hook, names.append
    try:
        with connection.execute_wrapper(note):
            yield calls
    finally:
        faults.hook = before


# What autovacuum leaves that comes by while a bulk insert is not committed yet: many pages and not
# one row in them, so that each way to read them all looks as cheap as a look at one row.
MISLEAD = """
    UPDATE pg_class SET reltuples = 0, relpages = pg_relation_size(oid) / 8192
    WHERE relname LIKE 'durable%'
"""


def explain(call: Call, *, generic: bool, misled: bool = False) -> Node:
    """Run a statement and return its plan; what it writes is rolled back.

    The generic plan is made and run as on a worker's own connection.
    """
    statement, params = call
    if statement in INSERTS:
        # The row that the first run made is there.
        params = {**params, "id": uuid7(), "ids": [uuid7() for _ in params.get("ids", ())]}
    with transaction.atomic(), connection.cursor() as cursor:
        command = base.sql(statement)
        if misled:
            cursor.execute(MISLEAD)
        if generic:
            for setting in base.PLAN_BY_INDEX.replace("SET ", "SET LOCAL ").split(";"):
                cursor.execute(setting)
            _prepare(statement)
            command = f"EXECUTE explained {_arguments(statement)}"
        cursor.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {command}", params)
        (found,) = cursor.fetchone()
        transaction.set_rollback(True)
    if generic:
        with connection.cursor() as cursor:
            cursor.execute("DEALLOCATE explained")
    plan: Node = (json.loads(found) if isinstance(found, str) else found)[0]["Plan"]
    return plan


def _names(statement: str) -> list[str]:
    return list(dict.fromkeys(re.findall(r"%\((\w+)\)s", base.sql(statement))))


def _arguments(statement: str) -> str:
    names = _names(statement)
    return f"({', '.join(f'%({name})s' for name in names)})" if names else ""


def _prepare(statement: str) -> None:
    places = {name: f"${place + 1}" for place, name in enumerate(_names(statement))}
    text = re.sub(r"%\((\w+)\)s", lambda found: places[found[1]], base.sql(statement))
    with ClientCursor(connection.connection) as cursor:
        cursor.execute(f"PREPARE explained AS {text}".encode())


def nodes(plan: Node) -> Iterator[Node]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from nodes(child)


def assert_seeks(
    call: Call,
    *,
    generic: bool,
    rows: int,
    table: str = "durable_job",
    misled: bool = False,
) -> None:
    """Assert that a statement reads at most so many rows, by index, and sorts no more."""
    for node in nodes(explain(call, generic=generic, misled=misled)):
        loops = node["Actual Loops"]
        passed = node["Actual Rows"] * loops
        dropped = node.get("Rows Removed by Filter", 0) * loops
        dropped += node.get("Rows Removed by Index Recheck", 0) * loops
        where = (call[0], "generic" if generic else "custom", node)
        if node.get("Relation Name") == table and "Scan" in node["Node Type"] and loops:
            assert node["Node Type"] != "Seq Scan", where
            assert passed + dropped <= rows, where
        if node["Node Type"] in ("Sort", "Incremental Sort", "WindowAgg"):
            assert passed <= rows, where
