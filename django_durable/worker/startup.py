"""What a worker checks before it starts: an error that waiting can't mend ends it at once."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

from django.conf import settings
from django.core.management.base import CommandError
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from django_durable import inspection, operations
from django_durable.conf import conf
from django_durable.worker.loops import OUTAGE, Outage, logger
from django_durable.worker.options import WorkerOptions

T = TypeVar("T")

# What a server says of a login that waiting can't mend; any other refusal may pass, such as that of
# a server that shuts down or is full. psycopg gives no code for what keeps it from connecting.
FINAL = (
    *("authentication failed", "does not exist", "not permitted to log in", "pg_hba.conf"),
    *("permission denied", "unrecognized configuration parameter", "invalid value for parameter"),
    # PgBouncer's own.
    *("no such database", "no such user", "unsupported startup parameter"),
)

MAKE_KNOWN = (
    "If the first job is yet to come, make the queue known:"
    " manage.py durable limit QUEUE --max-running none"
)


@contextlib.contextmanager
def stopping_at_signals() -> Iterator[None]:
    """Let SIGTERM and SIGINT end what is inside at once and without a sound.

    Until the supervisor takes the signals over, nothing is claimed, so there is nothing to wait for
    but, perhaps, a silent database.
    """
    signals = (signal.SIGTERM, signal.SIGINT)
    restore = [(number, signal.signal(number, _stop)) for number in signals]
    try:
        yield
    except _Stopped:
        pass
    finally:
        for number, handler in restore:
            signal.signal(number, handler)


class _Stopped(BaseException):
    """A signal asks for the end."""


def _stop(*_: object) -> None:
    raise _Stopped


def refuse_naive_time() -> None:
    """Refuse to serve a project without time zones, though the system checks be skipped."""
    if not settings.USE_TZ:
        raise CommandError(
            "USE_TZ is False. Set USE_TZ = True: leases, delays and schedules are moments, not"
            " readings of a clock."
        )


def wait_for_database() -> str:
    """Wait until the database answers and return its version.

    Raises `CommandError` for SQLite, a wrong password, a missing database and missing migrations.
    """
    wrapper = connections[conf.database]
    if wrapper.vendor != "postgresql":
        raise CommandError(
            f"The database {conf.database!r} is {wrapper.display_name}; durable jobs need"
            " PostgreSQL. Set DURABLE_DATABASE to an alias that is."
        )
    return _once_it_answers(lambda: _look(connections[conf.database]))


def settle_queues(options: WorkerOptions) -> None:
    """Refuse the name of a queue that nothing has, by `CommandError`; see that the others last.

    To be called once the settings are checked, which job types read.
    """
    _once_it_answers(lambda: _look_at_queues(options))


def _once_it_answers(look: Callable[[], T]) -> T:
    outage = Outage("worker")
    while True:
        try:
            found = look()
        except OUTAGE as error:
            if _is_final(error):
                raise CommandError(f"The database refuses the worker: {_line(error)}") from error
            threading.Event().wait(outage.failed(error))
        else:
            outage.passed()
            return found


def _look(wrapper: BaseDatabaseWrapper) -> str:
    with wrapper.cursor() as cursor:
        cursor.execute("SHOW server_version")
        version = str(cursor.fetchone()[0]).split(" ")[0]
    missing = inspection.missing_migrations(wrapper)
    if missing:
        raise CommandError(
            f"The database lacks {missing} migrations of durable; run: manage.py migrate"
        )
    return version


def _look_at_queues(options: WorkerOptions) -> None:
    """Look for each name.

    A queue that only its jobs name is unknown once retention has deleted them; a row keeps its
    name for the next start.
    """
    if unknown := inspection.unknown_queues(options.queues):
        raise CommandError(f"{' '.join(unknown)} {MAKE_KNOWN}")
    for sentence in inspection.unknown_queues(options.excluded_queues):
        logger.warning("%s It is excluded all the same", sentence)
    for name in inspection.unlasting_queues(options.queues):
        operations.limit_queue(name)


def _is_final(error: BaseException) -> bool:
    text = str(error)
    return "FATAL" in text and any(words in text for words in FINAL)


def _line(error: BaseException) -> str:
    lines = [line for line in str(error).strip().split("\n") if "FATAL" in line]
    return lines[0].strip() if lines else str(error).strip()
