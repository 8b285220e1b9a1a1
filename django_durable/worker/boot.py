"""The start of a child process: Django first, then everything that needs it."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import json
import os
import signal
import socket
import sys
import threading
from uuid import UUID

import django

from django_durable import faults
from django_durable.worker.stopsignals import leave_stops_to_the_supervisor
from django_durable.worker.streams import open_standard_streams

SWITCH_INTERVAL = 0.0005
# New containers between two collections of garbage. A batch of claims makes thousands that live
# until it is recorded; with Python's hundreds a busy child would spend a fifth of its time on
# looking through them.
GARBAGE_AT = 10_000


def main() -> None:
    """Run a child as its supervisor starts it: `options fd_channel fd_table size claimer`."""
    channel_fd, table_fd, size = (int(text) for text in sys.argv[2:5])
    leave_stops_to_the_supervisor()
    open_standard_streams()
    faulthandler.register(signal.SIGQUIT)
    django.setup()
    from django_durable import store
    from django_durable.conf import conf
    from django_durable.discovery import autodiscover
    from django_durable.logs import set_up_logging
    from django_durable.worker.answers import limit_waits
    from django_durable.worker.channel import Channel
    from django_durable.worker.child import Child
    from django_durable.worker.claimtable import ClaimTable
    from django_durable.worker.connections import notice_dead_peers
    from django_durable.worker.options import OPTIONS_VARIABLE, PATH_VARIABLE, WorkerOptions

    options = WorkerOptions.from_json(sys.argv[1])
    options.apply_to_settings()
    conf.freeze()
    os.environ[OPTIONS_VARIABLE] = sys.argv[1]
    os.environ[PATH_VARIABLE] = json.dumps(sys.path)
    set_up_logging(options)
    notice_dead_peers()
    store.end_idle_transactions_after(options.lease_duration)
    limit_waits(options.database_timeout)
    autodiscover()
    faults.arm_from_environment()
    # The claimer and the recorder, back from the database, should not wait for jobs that compute.
    sys.setswitchinterval(SWITCH_INTERVAL)
    _collect_seldom()
    channel = Channel(socket.socket(fileno=channel_fd))
    child = Child(options, UUID(sys.argv[5]), channel, ClaimTable(table_fd, size))
    threading.current_thread().name = "main"
    child.run()
    for stream in (sys.stdout, sys.stderr):
        # A job may have closed it.
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    # Threads of jobs that don't return would keep the process; their end is recorded.
    os._exit(0)


def _collect_seldom() -> None:
    """Let collections of garbage leave alone what was imported, and come after more new objects.

    What the project has chosen itself, at import or in `AppConfig.ready`, stays: no collections at
    all, or seldomer ones.
    """
    gc.collect()
    gc.freeze()
    first, *others = gc.get_threshold()
    if 0 < first < GARBAGE_AT:
        gc.set_threshold(GARBAGE_AT, *others)
