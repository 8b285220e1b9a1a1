"""The filters of jobs, the same in every subcommand that has them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.core.management.base import CommandParser
from django.db.models import Exists, F, OuterRef, Q
from django.db.models.functions import Coalesce

from django_durable.backoff import LONGEST
from django_durable.choices import JobStatus
from django_durable.durations import parse_duration
from django_durable.management.subcommands.base import flag_type, storable, wrong_usage
from django_durable.models import Attempt
from django_durable.querysets import ClockNow, JobQuerySet

FILTERS = ("status", "name", "queue_name", "error_class", "since", "limit")


def add_filters(parser: CommandParser, *, limit: int | None = None) -> None:
    """Declare the filters; `limit` is the default of `--limit`."""
    group = parser.add_argument_group("filters")
    several = "(repeat it, or write several with commas)"
    group.add_argument(
        "--status",
        action="extend",
        type=flag_type(_statuses),
        help=f"only jobs in this status {several}",
    )
    group.add_argument(
        "--name",
        action="extend",
        type=flag_type(_names),
        help=f"only jobs of this job type {several}",
    )
    group.add_argument(
        "--queue-name",
        action="extend",
        type=flag_type(_names),
        help=f"only jobs of this queue {several}",
    )
    group.add_argument(
        "--error-class",
        type=flag_type(storable),
        help="only jobs whose latest attempt failed with this error, such as ValueError",
    )
    group.add_argument(
        "--since",
        type=flag_type(_duration),
        metavar="DURATION",
        help="only jobs that ended (or else were enqueued) in this time, such as 12h",
    )
    group.add_argument(
        "--limit",
        type=flag_type(_limit),
        default=limit,
        help="at most so many jobs (default: %(default)s)"
        if limit
        else "at most so many jobs, the oldest ones",
    )


def _names(text: str) -> list[str]:
    return [name.strip() for name in storable(text).split(",")]


def _duration(text: str) -> timedelta:
    duration = parse_duration(text)
    if duration > LONGEST:
        raise ValueError(f"{text[:50]!r} is longer than {LONGEST.days} days")
    return duration


def _statuses(text: str) -> list[str]:
    names = _names(text.upper())
    for name in names:
        if name not in JobStatus.values:
            raise ValueError(f"{name!r} is not a status: {', '.join(JobStatus.values)}")
    return names


def _limit(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:19]) < 2**31:
        raise ValueError(f"{text[:50]!r} is not a whole number from 1 on")
    return int(text)


def filtered(jobs: JobQuerySet, options: dict[str, Any]) -> JobQuerySet:
    """Return the jobs that pass the filters, all but `--limit`."""
    statuses = options.get("status") or []
    if statuses:
        jobs = _in_statuses(jobs, set(statuses))
    if options.get("name"):
        jobs = jobs.filter(name__in=options["name"])
    if options.get("queue_name"):
        jobs = jobs.filter(queue_name__in=options["queue_name"])
    if options.get("error_class"):
        jobs = jobs.filter(_failed_with(options["error_class"]))
    since: timedelta | None = options.get("since")
    if since is not None:
        jobs = _since(jobs, since)
    return jobs


def _in_statuses(jobs: JobQuerySet, statuses: set[str]) -> JobQuerySet:
    jobs = jobs.filter(status__in=statuses)
    # What each status says of the due time, so that an index on it may serve.
    if statuses == {JobStatus.READY}:
        return jobs.filter(due_at__isnull=False)
    if not statuses & {JobStatus.READY, JobStatus.WAITING}:
        return jobs.filter(due_at__isnull=True)
    return jobs


def _failed_with(error_class: str) -> Exists:
    """Match the class's name with or without its module."""
    named = Q(error_class=error_class) | Q(error_class__endswith=f".{error_class}")
    return Exists(Attempt.objects.filter(named, job=OuterRef("pk"), number=OuterRef("attempt")))


def _since(jobs: JobQuerySet, since: timedelta) -> JobQuerySet:
    return jobs.alias(moment=Coalesce(F("finished_at"), F("enqueued_at"))).filter(
        moment__gte=ClockNow() - since
    )


def check_selection(options: dict[str, Any]) -> None:
    """Refuse flags that leave open which jobs are meant: ids, or `--all` and filters."""
    ids, everything = options["ids"], options["all"]
    if ids and everything:
        raise wrong_usage("name the jobs by id or say --all, not both")
    if not ids and not everything:
        raise wrong_usage("name the jobs by id, or say --all (and filters, to choose among them)")
    if ids and any(options.get(name) is not None for name in FILTERS):
        raise wrong_usage("filters choose among --all jobs; they don't go with ids")
