"""Foreign keys of users' tables to jobs: what they hold stays for as long as they do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from django.apps import apps
from django.db.backends.base.base import BaseDatabaseWrapper

from django_durable.store.base import clock_offset, rows, sql

JOBS = "durable_job"
# What stands in the statements for the question whether a row of another table points to `m`.
NOWHERE = "FALSE /* is pointed to */"


def pointed_to(db: BaseDatabaseWrapper, roots: Sequence[UUID]) -> set[UUID]:
    """Return those of the roots to whose trees rows of other tables point.

    Asked before a deletion, since PostgreSQL only says of all rows together that one of them can't
    go. Leaves out what the database itself deletes or changes with the job.
    """
    columns = _columns(db) if roots else []
    if not columns:
        return set()
    return {row[0] for row in _rows(db, "find_pointed_to", columns, roots=list(roots))}


def count_gone(db: BaseDatabaseWrapper) -> int:
    """Count the jobs that a sweep would delete."""
    number: int = _rows(db, "count_gone", _columns(db))[0][0]
    return number


def _columns(db: BaseDatabaseWrapper) -> list[tuple[Any, ...]]:
    own = [model._meta.db_table for model in apps.get_app_config("durable").get_models()]
    return rows(db, "find_pointers", own=own)


def _points(table: str, name: str, target: str, key: str) -> str:
    """Return the condition that a row of the table points to `m`, or to what goes with it."""
    if target == JOBS:
        return f"EXISTS (SELECT FROM {table} AS o WHERE o.{name} = m.{key})"
    return (
        f"EXISTS (SELECT FROM {target} AS p INNER JOIN {table} AS o ON p.{key} = o.{name}"
        " WHERE p.job_id = m.id)"
    )


def _rows(
    db: BaseDatabaseWrapper, statement: str, columns: Sequence[tuple[Any, ...]], **params: Any
) -> list[tuple[Any, ...]]:
    """Run a statement that asks for the columns which point to jobs."""
    points = [_points(*column) for column in columns]
    # A name may have the sign in it that begins a parameter.
    text = sql(statement).replace(NOWHERE, " OR ".join(points).replace("%", "%%") or NOWHERE)
    values: dict[str, Any] = {**params, "offset": clock_offset(db)}
    with db.cursor() as cursor:
        cursor.execute(text, values)
        found: list[tuple[Any, ...]] = cursor.fetchall()
    return found
