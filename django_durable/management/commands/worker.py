"""`manage.py worker`: claim jobs and run them until told to stop."""

from __future__ import annotations

import os
import socket
import sys
from typing import Any
from uuid import uuid4

import django
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import connections

from django_durable import __version__
from django_durable.conf import conf
from django_durable.discovery import autodiscover
from django_durable.durations import format_duration, parse_duration
from django_durable.jobtypes import registry
from django_durable.logs import set_up_logging
from django_durable.store import WorkerCard
from django_durable.worker.options import WorkerOptions
from django_durable.worker.startup import wait_for_database
from django_durable.worker.supervisor import Supervisor


def duration(text: str) -> float:
    """Read a duration flag as seconds."""
    seconds = parse_duration(text).total_seconds()
    if seconds < 0:
        raise ValueError(text)
    return seconds


def names(values: list[str]) -> tuple[str, ...]:
    """Read a flag that may be repeated and may hold commas; `*` and nothing mean all."""
    found = [name.strip() for value in values for name in value.split(",")]
    return () if "*" in found else tuple(dict.fromkeys(name for name in found if name))


class Command(BaseCommand):
    """Parse the flags, check what must be there, and hand over to the supervisor."""

    help = "Run durable jobs until stopped."

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the flags."""
        add = parser.add_argument
        add(
            "--queue-name",
            "-q",
            action="append",
            default=[],
            metavar="QUEUE",
            help="Serve these queues only (repeat or commas; * for all). Default: all.",
        )
        add(
            "--exclude-queue",
            action="append",
            default=[],
            metavar="QUEUE",
            help="Serve all queues but these (repeat or commas).",
        )
        add(
            "--job",
            action="append",
            default=[],
            metavar="NAME",
            help="Run these job types only (repeat or commas). Default: all that are known.",
        )
        add(
            "--concurrency",
            "-c",
            type=int,
            default=10,
            help="Run at most so many jobs at once. Default: %(default)s.",
        )
        add("--batch", action="store_true", help="End when nothing is due and nothing runs.")
        add(
            "--poll-interval",
            type=duration,
            default=None,
            metavar="DURATION",
            help="Look for work at least so often. Default: DURABLE_POLL_INTERVAL (1s).",
        )
        add(
            "--lease",
            type=duration,
            default=None,
            metavar="DURATION",
            help="A dead worker's jobs are free after this. Default: DURABLE_LEASE (30s).",
        )
        add(
            "--shutdown-timeout",
            type=duration,
            default=30.0,
            metavar="DURATION",
            help="What runs may take so long to finish after SIGTERM. Default: %(default)ss.",
        )
        add("--name", default="", help="Name the worker. Default: host and process id.")
        add(
            "--no-maintenance",
            dest="maintenance",
            action="store_false",
            help="Rescue nothing and call no hooks; delayed jobs still start.",
        )
        add(
            "--log-format",
            choices=["text", "json"],
            default="text",
            help="Write log lines as text or as JSON. Default: %(default)s.",
        )

    def handle(self, **flags: Any) -> None:
        """Run the worker; exits 0 after a clean stop, 1 with a sentence otherwise."""
        autodiscover()
        options = self._options(flags)
        set_up_logging(options)
        version = wait_for_database(options)
        if version is None:
            return
        card = WorkerCard(
            incarnation=uuid4(),
            name=options.name,
            hostname=socket.gethostname()[:255],
            pid=os.getpid(),
            queues=list(options.queues),
            excluded_queues=list(options.excluded_queues),
            job_names=options.served_names(),
            capabilities=list(options.capabilities),
            slots=options.concurrency,
            lease=options.lease_duration,
        )
        self._greet(options, version)
        connections.close_all()
        code = Supervisor(options, card).run()
        if code:
            sys.exit(code)

    def _options(self, flags: dict[str, Any]) -> WorkerOptions:
        poll = flags["poll_interval"]
        lease = flags["lease"]
        options = WorkerOptions(
            name=flags["name"] or f"{socket.gethostname()}:{os.getpid()}",
            queues=names(flags["queue_name"]),
            excluded_queues=names(flags["exclude_queue"]),
            job_names=names(flags["job"]),
            concurrency=flags["concurrency"],
            poll_interval=conf.poll_interval.total_seconds() if poll is None else poll,
            lease=conf.lease.total_seconds() if lease is None else lease,
            shutdown_timeout=flags["shutdown_timeout"],
            batch=flags["batch"],
            maintenance=flags["maintenance"],
            verbosity=flags["verbosity"],
            log_format=flags["log_format"],
        )
        self._check(options)
        return options

    def _check(self, options: WorkerOptions) -> None:
        unknown = [name for name in options.job_names if registry.find(name) is None]
        if unknown:
            raise CommandError(
                f"No job type is called {', '.join(unknown)}."
                f" Known: {', '.join(registry.names()) or 'none'}."
            )
        if not 1 <= options.concurrency <= 10_000:
            raise CommandError("--concurrency must be from 1 to 10000.")
        if options.poll_interval <= 0:
            raise CommandError("--poll-interval must be longer than nothing.")
        if options.lease < 1:
            raise CommandError("--lease must be 1 second or longer.")
        if len(options.name) > 200:
            raise CommandError("--name must have at most 200 characters.")

    def _greet(self, options: WorkerOptions, version: str) -> None:
        settings = connections[conf.database].settings_dict
        queues = ", ".join(options.queues) or "all queues"
        if options.excluded_queues:
            queues += f" but {', '.join(options.excluded_queues)}"
        waking = "notifications, and a poll" if conf.notify else "a poll"
        self.stdout.write(
            f"django_durable {__version__} on Django {django.get_version()}: worker"
            f" {options.name} (process {os.getpid()}) serves {queues} with"
            f" {options.concurrency} slots from {settings['NAME']} on PostgreSQL {version};"
            f" woken by {waking} every {options.poll_interval:g} s,"
            f" lease {format_duration(options.lease_duration)}"
        )
        self.stdout.flush()
