"""Run in the threads of users what some of them run very often."""

from __future__ import annotations

import functools
import math
import re
from typing import Any
from uuid import UUID

import psycopg
from django.db import ProgrammingError
from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg import errors, generators
from psycopg.adapt import Transformer
from psycopg.pq import ExecStatus, Format, PipelineStatus, TransactionStatus
from psycopg.pq.abc import PGresult

from django_durable import faults
from django_durable.store.base import is_direct, rows, sql

# As often as psycopg itself runs a statement before it prepares it.
PREPARE_FROM = 5
# What the server says when somebody has changed what the session had prepared.
_CHANGED = (errors.InvalidSqlStatementName, errors.DuplicatePreparedStatement)

Param = str | int | UUID | None


def rows_often(db: BaseDatabaseWrapper, statement: str, **params: Param) -> list[tuple[Any, ...]]:
    """Run as `rows` does, in the threads of users, what some of them run very often.

    A connection that lives prepares it: parsing and planning costs as much as the rest of a short
    statement. Django turns that off by default, for poolers' sake; behind one it is not done here
    either, nor where somebody watches the statements, nor in a transaction: it would be broken if
    somebody has made the session forget what it had prepared.
    """
    # As Django does before a statement, where a project wants it.
    db.close_if_health_check_failed()
    raw = db.connection
    if raw is None or db.in_atomic_block or db.queries_logged or db.execute_wrappers:
        return rows(db, statement, **params)
    uses = raw.durable_uses = getattr(raw, "durable_uses", 0) + 1
    if uses <= PREPARE_FROM or not _is_ready(raw) or not is_direct(db):
        return rows(db, statement, **params)
    faults.reach(statement)
    db.validate_thread_sharing()
    try:
        with db.wrap_database_errors:
            return _prepared(raw, statement, params)
    except ProgrammingError as error:
        if not isinstance(error.__cause__, _CHANGED):
            raise
    # Forgotten, as by DISCARD ALL. It may be again: not on this connection any more.
    raw.durable_uses = -math.inf
    return rows(db, statement, **params)


def _is_ready(raw: psycopg.Connection[Any]) -> bool:
    """Tell whether what is sent now is a transaction of its own, and answered by itself."""
    pgconn = raw.pgconn
    return (
        pgconn.transaction_status == TransactionStatus.IDLE
        and pgconn.pipeline_status == PipelineStatus.OFF
        and raw.autocommit
    )


def _prepared(raw: Any, statement: str, params: dict[str, Param]) -> list[tuple[Any, ...]]:
    """Do what a cursor would, but for all that it works out anew for each statement."""
    name, text, order = _numbered(statement)
    values = [_encoded(params[param]) for param in order]
    with raw.lock:
        kept: dict[str, Any] = vars(raw).setdefault("durable_prepared", {})
        reader = kept.get(statement)
        if reader is None:
            raw.pgconn.send_prepare(name, text)
            _answer(raw)
            reader = kept[statement] = Transformer(raw)
        raw.pgconn.send_query_prepared(name, values, result_format=Format.BINARY)
        answer = _answer(raw)
        # Each answer in turn: the reader is of the connection, which threads may share.
        reader.set_pgresult(answer)
        return reader.load_rows(0, answer.ntuples, tuple)


def _answer(raw: Any) -> PGresult:
    answer: PGresult = raw.wait(generators.execute(raw.pgconn))[0]
    if answer.status not in (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK):
        raise errors.error_from_result(answer, encoding="utf-8")
    return answer


@functools.cache
def _numbered(statement: str) -> tuple[bytes, bytes, tuple[str, ...]]:
    """Return its name in the session, its text with numbers for parameters, and their names."""
    order: dict[str, int] = {}

    def number(found: re.Match[str]) -> str:
        return f"${order.setdefault(found[1], len(order) + 1)}"

    text = re.sub(r"%\((\w+)\)s", number, sql(statement))
    return f"durable_{statement}".encode(), text.encode(), tuple(order)


def _encoded(value: Param) -> bytes | None:
    if isinstance(value, str):
        return value.encode()
    return None if value is None else str(value).encode()
