"""What a worker checks before it starts: an error that waiting can't mend ends it at once."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator

from django.core.management.base import CommandError
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from django_durable.conf import conf
from django_durable.inspection import missing_migrations, queue_counts
from django_durable.worker.loops import OUTAGE, Outage, logger
from django_durable.worker.options import WorkerOptions

# What a server says that refuses connections for now; any other refusal is final.
FOR_NOW = ("starting up", "shutting down", "recovery", "too many", "remaining connection slots")


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


def wait_for_database(options: WorkerOptions) -> str:
    """Wait until the database answers and return its version.

    Raises `CommandError` for SQLite, a wrong password, a missing database and missing migrations.
    """
    wrapper = connections[conf.database]
    if wrapper.vendor != "postgresql":
        raise CommandError(
            f"The database {conf.database!r} is {wrapper.display_name}; durable jobs need"
            " PostgreSQL. Set DURABLE_DATABASE to an alias that is."
        )
    outage = Outage("worker")
    while True:
        try:
            version = _look(connections[conf.database])
            _warn_of_unknown_queues(options)
        except OUTAGE as error:
            if _is_final(error):
                raise CommandError(f"The database refuses the worker: {_line(error)}") from error
            threading.Event().wait(outage.failed(error))
        else:
            outage.passed()
            return version


def _look(wrapper: BaseDatabaseWrapper) -> str:
    with wrapper.cursor() as cursor:
        cursor.execute("SHOW server_version")
        version = str(cursor.fetchone()[0]).split(" ")[0]
    missing = missing_migrations(wrapper)
    if missing:
        raise CommandError(
            f"The database lacks {missing} migrations of durable; run: manage.py migrate"
        )
    return version


def _warn_of_unknown_queues(options: WorkerOptions) -> None:
    """Say that a queue has nothing to do with anything; its first job may be yet to come."""
    if not options.queues:
        return
    known = {counts.name for counts in queue_counts(limit=1)}
    unknown = [name for name in options.queues if name not in known]
    if unknown:
        logger.warning(
            "No job type, row or unfinished job has the queue %s; the worker waits for its jobs."
            " Known: %s",
            ", ".join(unknown),
            ", ".join(sorted(known)) or "none",
        )


def _is_final(error: BaseException) -> bool:
    text = str(error)
    return "FATAL" in text and not any(words in text for words in FOR_NOW)


def _line(error: BaseException) -> str:
    lines = [line for line in str(error).strip().split("\n") if "FATAL" in line]
    return lines[0].strip() if lines else str(error).strip()
