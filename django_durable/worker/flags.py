"""The flags of `manage.py worker`."""

from __future__ import annotations

import argparse
import os
import socket
from argparse import ArgumentParser
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.core.management.base import CommandError

from django_durable.conf import conf
from django_durable.durations import format_duration, parse_duration
from django_durable.jobtypes import is_storable, registry
from django_durable.worker.options import WorkerOptions


def duration(text: str) -> float:
    """Read a duration flag as seconds."""
    seconds = parse_duration(text).total_seconds()
    if seconds < 0:
        raise ValueError(text)
    return seconds


def names(values: list[str]) -> tuple[str, ...]:
    """Read a flag that may be repeated and may hold commas; `*` means all, as no flag does."""
    found = [name.strip() for value in values for name in value.split(",")]
    return () if "*" in found else tuple(dict.fromkeys(name for name in found if name))


def given(text: str) -> str:
    """Refuse a flag without a value, which a variable that is not set may leave behind.

    And one that the database can't know.
    """
    if not text.replace(",", "").strip():
        raise argparse.ArgumentTypeError("it has no value; is a variable not set?")
    if not is_storable(text):
        raise argparse.ArgumentTypeError(
            f"{text[:50]!r} has characters that PostgreSQL can't store"
        )
    return text


def _list(metavar: str, text: str) -> dict[str, Any]:
    return {"action": "append", "type": given, "default": [], "metavar": metavar, "help": text}


def _time(default: float | None, text: str) -> dict[str, Any]:
    return {"type": duration, "default": default, "metavar": "DURATION", "help": text}


FLAGS: dict[tuple[str, ...], dict[str, Any]] = {
    ("--queue-name", "-q"): _list(
        "QUEUE", "Serve these queues only (repeat or commas; * for all)."
    ),
    ("--exclude-queue",): _list("QUEUE", "Serve all queues but these (repeat or commas)."),
    ("--job",): _list("NAME", "Run these job types only (repeat or commas)."),
    ("--capability",): _list("NAME", "Take jobs that require this, too (repeat or commas)."),
    ("--processes", "-p"): {
        "type": int,
        "default": 1,
        "help": "Run so many child processes. Default: %(default)s.",
    },
    ("--concurrency", "-c"): {
        "type": int,
        "default": 10,
        "help": "Run at most so many jobs at once in each child. Default: %(default)s.",
    },
    ("--batch",): {"action": "store_true", "help": "End when nothing is due and nothing runs."},
    ("--max-jobs",): {
        "type": int,
        "metavar": "N",
        "help": "Replace a child that has taken so many jobs.",
    },
    ("--max-seconds",): _time(None, "Replace a child that is this old."),
    ("--max-rss",): {
        "type": float,
        "metavar": "MIB",
        "help": "Replace a child that uses more memory than so many MiB.",
    },
    ("--reload",): {
        "action": argparse.BooleanOptionalAction,
        "default": None,
        "help": "Replace the children when code changes. Default: DEBUG.",
    },
    ("--poll-interval",): _time(
        None, "Look for work at least so often. Default: DURABLE_POLL_INTERVAL (1s)."
    ),
    ("--lease",): _time(
        None, "A dead worker's jobs are free after this. Default: DURABLE_LEASE (30s)."
    ),
    ("--shutdown-timeout",): _time(
        30.0, "What runs may take so long to finish after SIGTERM. Default: 30s."
    ),
    ("--stall-timeout",): _time(
        900.0, "Kill a child whose main thread has not run for so long. Default: 15m."
    ),
    ("--database-timeout",): _time(
        60.0, "Connect anew when a statement of the worker gets no answer. Default: 60s."
    ),
    ("--no-maintenance",): {
        "dest": "maintenance",
        "action": "store_false",
        "help": "Rescue nothing and call no hooks; delayed jobs still start.",
    },
    ("--name",): {
        "type": given,
        "help": "Name the worker. Default: host and process id.",
    },
    ("--database",): {
        "metavar": "ALIAS",
        "help": "Use this database instead of DURABLE_DATABASE.",
    },
    ("--log-format",): {
        "choices": ["text", "json"],
        "default": "text",
        "help": "Write log lines as text or as JSON. Default: %(default)s.",
    },
}


LONGEST = timedelta(days=365).total_seconds()
# The lease and the interval as the settings of the same names.
TIMES = {
    "poll_interval": (0.01, 3600.0),
    "lease": (1.0, 86400.0),
    "shutdown_timeout": (0.0, LONGEST),
    "stall_timeout": (0.001, LONGEST),
    "database_timeout": (1.0, LONGEST),
    "max_seconds": (0.001, LONGEST),
}
RANGES = {
    "processes": (1, 256),
    "concurrency": (1, 10_000),
    "max_jobs": (1, 1_000_000_000),
    "max_rss": (1, 1_000_000_000),
    **TIMES,
}


def add_flags(parser: ArgumentParser) -> None:
    """Declare the flags."""
    for flags, settings_ in FLAGS.items():
        parser.add_argument(*flags, **settings_)


def read_flags(flags: dict[str, Any]) -> WorkerOptions:
    """Return the options that the flags say; raises `CommandError` for what can't be."""
    if flags["database"] is not None:
        if flags["database"] not in settings.DATABASES:
            raise CommandError(f"There is no database {flags['database']!r} in DATABASES.")
        settings.DURABLE_DATABASE = flags["database"]
    poll, lease, reload = flags["poll_interval"], flags["lease"], flags["reload"]
    same = (
        "processes", "concurrency", "batch", "max_jobs", "max_seconds", "max_rss", "database",
        "shutdown_timeout", "stall_timeout", "database_timeout", "maintenance", "verbosity",
        "log_format",
    )  # fmt: skip
    options = WorkerOptions(
        name=flags["name"] or f"{socket.gethostname()}:{os.getpid()}",
        queues=names(flags["queue_name"]),
        excluded_queues=names(flags["exclude_queue"]),
        job_names=names(flags["job"]),
        capabilities=names(flags["capability"]),
        poll_interval=conf.poll_interval.total_seconds() if poll is None else poll,
        lease=conf.lease.total_seconds() if lease is None else lease,
        reload=(settings.DEBUG if reload is None else reload) and not flags["batch"],
        **{name: flags[name] for name in same},
    )
    if flags["batch"] and reload:
        raise CommandError("--reload is for a worker that stays; it has no use with --batch.")
    _check(options)
    return options


def _show(name: str, value: float) -> str:
    return format_duration(timedelta(seconds=value)) if name in TIMES else str(value)


def _check(options: WorkerOptions) -> None:
    unknown = [name for name in options.job_names if registry.find(name) is None]
    if unknown:
        raise CommandError(
            f"No job type is called {', '.join(unknown)}."
            f" Known: {', '.join(registry.names()) or 'none'}."
        )
    for name, (least, most) in RANGES.items():
        value = getattr(options, name)
        # What is not a number is in no range.
        if value is not None and not least <= value <= most:
            flag, ends = name.replace("_", "-"), [_show(name, end) for end in (least, most)]
            raise CommandError(f"--{flag} must be from {' to '.join(ends)}.")
    if options.queues and not set(options.queues) - set(options.excluded_queues):
        raise CommandError(
            f"--exclude-queue leaves none of the queues {', '.join(options.queues)} to serve."
        )
    if len(options.name) > 200:
        raise CommandError("--name must have at most 200 characters.")
