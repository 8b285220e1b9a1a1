"""Run the statements of `sql/`, each by the name of its file."""

from __future__ import annotations

import functools
import json
import math
import re
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime, timedelta
from importlib import resources
from typing import Any, TypeVar
from uuid import UUID

import psycopg
from django.db import DataError, InterfaceError, OperationalError, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from django_durable import faults
from django_durable.conf import conf
from django_durable.uuid7 import uuid7

NO_OFFSET = timedelta(0)
# What is raised while the database is away, or when a connection is lost.
OUTAGE = (OperationalError, InterfaceError)
# The class of errors of a value too large, or too many of them.
PROGRAM_LIMIT_EXCEEDED = "54"
LOCK_NOT_AVAILABLE = "55P03"
# How long what serves many jobs waits for the row of one.
MOMENT = timedelta(milliseconds=100)
T = TypeVar("T")
_thread = threading.local()


def connection() -> BaseDatabaseWrapper:
    """Return this thread's connection to `DURABLE_DATABASE`."""
    wrapper: BaseDatabaseWrapper = connections[conf.database]
    return wrapper


@functools.cache
def sql(name: str) -> str:
    """Return the text of `sql/<name>.sql`, with the files that it includes."""
    text = resources.files("django_durable").joinpath("sql", f"{name}.sql").read_text()
    text = re.sub(r"-- include: (\w+)\n", lambda found: sql(found[1]), text)
    # Comments are for the reader; the server would parse them with every call.
    return re.sub(r"^\s*--.*\n", "", text, flags=re.MULTILINE)


def log_event(event: str, **about: Any) -> str:
    """Return what `log_event.sql` takes: a moment of a job's history, without what is empty."""
    return json.dumps({"event": event, **{name: part for name, part in about.items() if part}})


@functools.cache
def _bytes(name: str) -> bytes:
    return sql(name).encode()


def rows(db: BaseDatabaseWrapper, statement: str, **params: Any) -> list[tuple[Any, ...]]:
    """Run one statement of the store and return its rows.

    `statement` names a file of `sql/`. The clock's offset, which only the testing kit sets, rides
    along as `offset`. Raises `DataError` for what is beyond a limit of the server, and `RowLocked`
    where a lock is waited for only so long.
    """
    try:
        return _rows(db, statement, params)
    except OperationalError as error:
        # It would come again and again, unlike what its kind has else: a database that is away.
        if str(getattr(error.__cause__, "sqlstate", None)).startswith(PROGRAM_LIMIT_EXCEEDED):
            raise DataError(*error.args) from error.__cause__
        if is_held(error):
            raise RowLocked(*error.args) from error.__cause__
        raise


def _rows(db: BaseDatabaseWrapper, statement: str, params: dict[str, Any]) -> list[tuple[Any, ...]]:
    faults.reach(statement)
    params["offset"] = clock_offset(db)
    if getattr(_thread, "prepares", False) and is_direct(db):
        with db.wrap_database_errors:
            prepared = _own_cursor(db).execute(_bytes(statement), params)
            # Whether there are columns, asked of the driver: a description of each would be made.
            has_rows = prepared.pgresult is not None and prepared.pgresult.nfields
            return prepared.fetchall() if has_rows else []
    with db.cursor() as cursor:
        cursor.execute(sql(statement), params)
        return cursor.fetchall() if cursor.description else []


@contextmanager
def pipeline(db: BaseDatabaseWrapper) -> Iterator[None]:
    """Let the server work on statements that were sent while this process makes the next ones.

    For `send` only: whatever else runs on the connection meanwhile would wait for all of them. An
    error comes with the next statement, with the rows of its own, or at the latest with the end.
    """
    db.ensure_connection()
    with db.wrap_database_errors:
        if not psycopg.Pipeline.is_supported():
            yield
            return
        with db.connection.pipeline():
            yield


def send(
    db: BaseDatabaseWrapper, statement: str, **params: Any
) -> Callable[[], list[tuple[Any, ...]]]:
    """Run one statement of the store as `rows` does, but return what waits for its rows."""
    faults.reach(statement)
    params["offset"] = clock_offset(db)
    cursor = db.cursor()
    cursor.execute(sql(statement), params)
    answer: Callable[[], list[tuple[Any, ...]]] = cursor.fetchall
    return answer


def prepare_in_this_thread() -> None:
    """Let the store's statements of this thread be planned once a connection, as a worker wants.

    For threads that run no users' code, since the connection is set up for the store. Behind a
    pooler it changes nothing: prepared statements belong to a server process.
    """
    _thread.prepares = True


@contextmanager
def preparing() -> Iterator[None]:
    """Do as `prepare_in_this_thread` while this one uses the connection of such a thread."""
    before, _thread.prepares = getattr(_thread, "prepares", False), True
    try:
        yield
    finally:
        _thread.prepares = before


# The store's statements seek by index, whatever the statistics say of a table that changes so
# fast; planning them anew, or compiling them, would take longer than running them. What they seek
# is in memory: with the usual costs of pages, reading a table of thousands of rows from end to end
# looks cheaper than ten seeks.
# Joins to jobs say `= ANY(ARRAY[x])`: for a plain `=` an index may be walked from end to end, since
# its order would be of use for a merge; with statistics of a moment when a bulk insert was not
# committed yet it is, as tests/kernel/plans.py shows.
PLAN_BY_INDEX = """
    SET enable_seqscan TO off; SET enable_hashjoin TO off; SET enable_mergejoin TO off;
    SET seq_page_cost TO 0; SET random_page_cost TO 0;
    SET plan_cache_mode TO force_generic_plan; SET jit TO off
"""
# A plan is kept until the next ANALYZE. Reading all of a small table is best, and would be kept
# while a million jobs come in; so plans are made anew once the table has some pages.
SOME_SIZE = 16 * 8192
CHECK_SIZE_EVERY = 1.0


def relax_commits(db: BaseDatabaseWrapper) -> None:
    """Let commits on this connection not wait for the disk, as claims need not.

    A crash of the server may then take back what was committed in its last half second. For a
    claim that means that its job is READY again and that the run's end is not recorded, since its
    epoch is nobody's. Behind a pooler it changes nothing: the session is not ours.
    """
    if is_direct(db) and not getattr(db.connection, "durable_relaxed", False):
        with db.cursor() as cursor:
            cursor.execute("SET synchronous_commit TO off")
        db.connection.durable_relaxed = True


def wait_briefly(db: BaseDatabaseWrapper) -> bool:
    """Let statements on this connection wait but a moment for a lock, and raise `RowLocked` then.

    Returns whether they do.

    For what serves many jobs at once: whoever has locked the row of one, as a transaction does that
    has sent it a signal, may take his time. Behind a pooler it changes nothing: the session is not
    ours; ask `locked_by_others` there.
    """
    if not is_direct(db):
        return False
    if not getattr(db.connection, "durable_brief", False):
        with db.cursor() as cursor:
            cursor.execute("SELECT set_config('lock_timeout', %s, FALSE)", [_milliseconds(MOMENT)])
        db.connection.durable_brief = True
    return True


def _own_cursor(db: BaseDatabaseWrapper) -> psycopg.Cursor[Any]:
    raw = db.connection
    cursor: psycopg.Cursor[Any] | None = getattr(raw, "durable_cursor", None)
    if cursor is None:
        with db.cursor() as setting:
            setting.execute(PLAN_BY_INDEX)
        # Django turns preparing off by default, for poolers' sake.
        raw.prepare_threshold = 0
        cursor = raw.durable_cursor = psycopg.Cursor(raw)
        # Binary, since reading texts would cost a worker more than all else that it does.
        cursor.format = psycopg.pq.Format.BINARY
        raw.durable_size_at = time.monotonic()
    if time.monotonic() >= raw.durable_size_at:
        _replan_if_grown(db)
    return cursor


def _replan_if_grown(db: BaseDatabaseWrapper) -> None:
    with db.cursor() as cursor:
        cursor.execute("SELECT pg_relation_size('durable_job') >= %s", [SOME_SIZE])
        has_grown = cursor.fetchone()[0]
        if has_grown:
            cursor.execute("DISCARD PLANS")
    pause = math.inf if has_grown else CHECK_SIZE_EVERY
    db.connection.durable_size_at = time.monotonic() + pause


def is_direct(db: BaseDatabaseWrapper) -> bool:
    """Tell whether the connection ends at one server process, with no pooler between.

    A pooler introduces itself with a process id that is not the server's.
    """
    db.ensure_connection()
    raw = db.connection
    direct: bool | None = getattr(raw, "durable_direct", None)
    if direct is None:
        with db.cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            direct = bool(cursor.fetchone()[0] == raw.info.backend_pid)
        raw.durable_direct = direct
    return direct


def is_usable(db: BaseDatabaseWrapper) -> bool:
    """Tell whether the open transaction can go on after an error of whatever database."""
    status = db.connection.info.transaction_status if db.connection is not None else None
    return status == psycopg.pq.TransactionStatus.INTRANS and not db.needs_rollback


def clock_offset(db: BaseDatabaseWrapper) -> timedelta:
    """Return how far the testing kit has moved the one clock for this connection."""
    offset: timedelta = getattr(db, "durable_clock_offset", NO_OFFSET)
    return offset


def literal(elements: Sequence[str]) -> str:
    """Return the text form of an array; elements are `quoted` or need no quotes."""
    return "{" + ",".join(elements) + "}"


def quoted(text: str) -> str:
    """Return a text as an element of an array's text form."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


# For how long a transaction of ours may be without a statement, in a process of a worker.
_idle_limit: timedelta | None = None


def end_idle_transactions_after(duration: timedelta) -> None:
    """Let the server end transactions of this process's verbs that have no statement for so long.

    A process that is frozen in the middle of one, or whose machine has vanished, would keep its
    locks, and with them others from taking over its jobs, and even from ending their own.
    """
    global _idle_limit
    _idle_limit = duration


@contextmanager
def atomic(db: BaseDatabaseWrapper, idle: timedelta | None = None) -> Iterator[None]:
    """Open a transaction on the connection, or a savepoint in the caller's.

    The server ends a transaction that has no statement for as long as `idle`, or in a worker for
    a lease. A savepoint with `idle` sets it for the caller's.
    """
    limit = idle or (None if db.in_atomic_block else _idle_limit)
    with transaction.atomic(using=db.alias):
        if limit is not None:
            rows(db, "end_if_idle", milliseconds=_milliseconds(limit))
        yield


class RowLocked(OperationalError):  # noqa: N818 - what it is to the driver
    """Somebody else has locked a row, and for longer than this statement may wait."""


class LateWaiter(Exception):  # noqa: N818 - it is no error
    """A job began to wait for one that was just being locked, so that not all waiters are."""


def ending(db: BaseDatabaseWrapper, verb: Callable[[], T]) -> T:
    """Run a verb that ends jobs in one transaction, anew if a waiter came too late to be locked.

    In the caller's transaction it is a savepoint, whose locks a rollback gives back too.
    """
    while True:
        try:
            with atomic(db):
                return verb()
        except LateWaiter:
            continue


class Locked(dict[UUID, UUID | None]):
    """Hold the ids of locked jobs, each with its root if it may not be alone in its tree."""

    @classmethod
    def of(cls, found: Sequence[tuple[Any, ...]]) -> Locked:
        """Read rows of (id, root, awaited)."""
        return cls({row[0]: row[1] if row[2] else None for row in found})

    def roots_of(self, ids: Iterable[UUID]) -> set[UUID]:
        """Return the roots of those of these jobs that may have company."""
        return {root for root in map(self.get, ids) if root is not None}


def lock_with_waiters(db: BaseDatabaseWrapper, ids: Sequence[UUID]) -> Locked:
    """Lock jobs that may end, all that wait for them and their roots, in the one order."""
    return Locked.of(rows(db, "lock_with_waiters", ids=list(ids)))


def settle_trees(db: BaseDatabaseWrapper, roots: Iterable[UUID]) -> None:
    """Set or clear until when these trees are kept, after an end in them.

    To be called last in the transaction of that end. The roots are locked, so that of two ends at
    once the later one sees the other.
    """
    settled = list(roots)
    if settled:
        rows(db, "settle_trees", roots=settled)


def bear_undos(db: BaseDatabaseWrapper, ended: Sequence[UUID]) -> set[str]:
    """Make the undo jobs of what has just died or been cancelled; return the queues they are in.

    To be called in the transaction that ended them, so that no job is dead without its undo job.
    """
    if not ended:
        return set()
    new = [uuid7() for _ in ended]
    return {row[0] for row in rows(db, "bear_undos", ended=list(ended), new=new)}


def wake_waiters(
    db: BaseDatabaseWrapper, ended: Sequence[UUID], locked: Collection[UUID]
) -> set[str]:
    """Wake the parked jobs that waited for the ended ones; return the queues that got work.

    To be called in the transaction that ended them, after the statement that did. The waiters
    are locked already and judged only now, in later statements: two endings at once would
    otherwise each see the other's await row and both leave the waiter asleep. Raises `LateWaiter`
    for one that is not in `locked`: locking it now could be a deadlock.
    """
    if not ended:
        return set()
    freed = rows(db, "end_awaits", ids=list(ended))
    waiters = {row[0] for row in freed}
    if not waiters <= set(locked):
        raise LateWaiter
    if not waiters:
        return set()
    return {row[1] for row in rows(db, "wake", waiters=list(waiters))}


def open_transaction(idle: timedelta | None = None) -> AbstractContextManager[None]:
    """Open a transaction as `atomic` does on this thread's connection, for several verbs."""
    return atomic(connection(), idle)


def wait_for_locks(db: BaseDatabaseWrapper, duration: timedelta) -> None:
    """Let the statements of the open transaction wait for a lock for so long, and then fail."""
    rows(db, "wait_for_locks", milliseconds=_milliseconds(duration))


def _milliseconds(duration: timedelta) -> str:
    # Zero would be no limit.
    return str(max(int(duration.total_seconds() * 1000), 1))


def is_held(error: OperationalError) -> bool:
    """Tell whether a statement has failed since somebody held a lock for too long."""
    return getattr(error.__cause__, "sqlstate", None) == LOCK_NOT_AVAILABLE


def now(db: BaseDatabaseWrapper) -> datetime:
    """Return the one clock's time."""
    moment: datetime = rows(db, "now")[0][0]
    return moment
