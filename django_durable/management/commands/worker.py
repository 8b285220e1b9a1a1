"""`manage.py worker`: claim jobs and run them until told to stop."""

from __future__ import annotations

import os
import socket
import sys
from typing import Any
from uuid import uuid4

import django
from django.core.management.base import BaseCommand, CommandParser
from django.db import connections

from django_durable import __version__, inspection, store
from django_durable.conf import conf
from django_durable.discovery import autodiscover
from django_durable.durations import format_duration
from django_durable.logs import set_up_logging
from django_durable.store import WorkerCard
from django_durable.worker.answers import SHORTEST, limit_waits
from django_durable.worker.connections import notice_dead_peers
from django_durable.worker.flags import add_flags, read_flags
from django_durable.worker.options import WorkerOptions
from django_durable.worker.startup import (
    refuse_naive_time,
    settle_queues,
    stopping_at_signals,
    wait_for_database,
)
from django_durable.worker.streams import open_standard_streams, say
from django_durable.worker.supervisor import Supervisor


class Command(BaseCommand):
    """Parse the flags, check what must be there, and hand over to the supervisor."""

    help = "Run durable jobs until stopped."
    # Some of them ask the database, which may have to be waited for.
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the flags."""
        add_flags(parser)
        parser.add_argument("--skip-checks", action="store_true", help="Skip system checks.")

    def handle(self, **flags: Any) -> None:
        """Run the worker; exits 0 after a clean stop, 1 with a sentence otherwise."""
        with stopping_at_signals():
            self._run(flags)

    def _run(self, flags: dict[str, Any]) -> None:
        open_standard_streams()
        autodiscover()
        options = read_flags(flags)
        set_up_logging(options)
        notice_dead_peers()
        store.end_idle_transactions_after(options.lease_duration)
        version = wait_for_database()
        if not flags["skip_checks"]:
            self.check(display_num_errors=False)
        refuse_naive_time()
        settle_queues(options)
        card = WorkerCard(
            incarnation=uuid4(),
            name=options.name,
            hostname=socket.gethostname()[:255],
            pid=os.getpid(),
            queues=list(options.queues),
            excluded_queues=list(options.excluded_queues),
            job_names=options.served_names(),
            capabilities=list(options.capabilities),
            slots=options.processes * options.concurrency,
            lease=options.lease_duration,
        )
        self._greet(options, version)
        connections.close_all()
        # In time to renew the leases over another connection.
        limit_waits(min(options.database_timeout, max(options.lease / 2, SHORTEST)))
        code = Supervisor(options, card).run()
        if code:
            sys.exit(code)
        if options.batch:
            for sentence in inspection.undefined():
                say(f"{sentence}\n")

    def _greet(self, options: WorkerOptions, version: str) -> None:
        settings = connections[conf.database].settings_dict
        queues = ", ".join(options.queues) or "all queues"
        if options.excluded_queues:
            queues += f" but {', '.join(options.excluded_queues)}"
        waking = "notifications, and a poll" if conf.notify else "a poll"
        say(
            f"django_durable {__version__} on Django {django.get_version()}: worker"
            f" {options.name} (process {os.getpid()}) serves {queues} with"
            f" {options.processes} x {options.concurrency} slots from {settings['NAME']} on"
            f" PostgreSQL {version};"
            f" woken by {waking} every {options.poll_interval:g} s,"
            f" lease {format_duration(options.lease_duration)}\n"
        )
