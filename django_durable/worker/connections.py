"""A clean connection for each job, whatever the last one did to it."""

from __future__ import annotations

from contextlib import suppress

from django.db import connections, reset_queries
from django.db.backends.base.base import BaseDatabaseWrapper

from django_durable.errorlog import get_logger

logger = get_logger("django_durable.worker")


def clean() -> None:
    """Close this thread's connections that are old, broken, or left in a strange state.

    Raises nothing: the run that was before has an end to be recorded.
    """
    for wrapper in connections.all(initialized_only=True):
        try:
            _clean(wrapper)
        except Exception:
            logger.exception("The connection %r could not be closed in order", wrapper.alias)
            del connections[wrapper.alias]
    reset_queries()


def _clean(wrapper: BaseDatabaseWrapper) -> None:
    if wrapper.in_atomic_block or wrapper.needs_rollback or _is_in_transaction(wrapper):
        # An open transaction of a job that has ended is nobody's; Django refuses to reconnect
        # inside one, so the wrapper goes too.
        wrapper.close()
        del connections[wrapper.alias]
    else:
        wrapper.close_if_unusable_or_obsolete()


def _is_in_transaction(wrapper: BaseDatabaseWrapper) -> bool:
    """Tell whether the driver is inside a transaction, which Django need not know of."""
    info = getattr(wrapper.connection, "info", None)
    return bool(getattr(info, "transaction_status", 0))


def drop() -> None:
    """Close this thread's connections after a failure, to begin anew with the next statement."""
    for wrapper in connections.all(initialized_only=True):
        # The loop that asks for this must go on, whatever becomes of the old connection.
        with suppress(Exception):
            wrapper.close()
        del connections[wrapper.alias]


# What libpq is told of connections over a network, unless the project says otherwise: a peer that
# has vanished without a word is noticed within some seconds, where TCP alone waits for hours.
LIVELY = {
    "connect_timeout": 10,
    "keepalives_idle": 5,
    "keepalives_interval": 3,
    "keepalives_count": 3,
    "tcp_user_timeout": 15_000,
}


def notice_dead_peers() -> None:
    """Let this process's connections to PostgreSQL notice a network that swallows packets."""
    for alias in connections:
        wrapper = connections[alias]
        if wrapper.vendor == "postgresql":
            options = wrapper.settings_dict.setdefault("OPTIONS", {})
            for name, value in LIVELY.items():
                options.setdefault(name, value)
