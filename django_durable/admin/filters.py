"""Filters whose choices cost one bounded query, whatever the size of the table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any

from django.contrib import admin
from django.contrib.admin.filters import ChoicesFieldListFilter
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from django_durable.choices import JobStatus
from django_durable.durations import parse_duration
from django_durable.jobtypes import registry
from django_durable.models import Job
from django_durable.querysets import ClockNow

# How many of the newest jobs are asked for names, and how many names are offered.
SAMPLE = 1000
MAX_CHOICES = 100


# What a status says of the due time and the concurrency key, in the words of the partial indexes,
# which hold the rows with a due time and those without, and the former by whether they need a key.
_DUE = (Q(due_at__isnull=False) & (Q(key_hash__isnull=True) | Q(key_held=True))) | Q(
    due_at__isnull=False, key_hash__isnull=False, key_held=False
)
_NOT_DUE = Q(due_at__isnull=True)
_HINTS: Mapping[str, Q] = {
    JobStatus.READY: _DUE,
    JobStatus.RUNNING: _NOT_DUE,
    JobStatus.WAITING: _DUE | _NOT_DUE,
    JobStatus.SUCCESSFUL: _NOT_DUE,
    JobStatus.DEAD: _NOT_DUE,
    JobStatus.CANCELLED: _NOT_DUE,
}


class StatusFilter(ChoicesFieldListFilter):
    """Filter by status, so that the few jobs of one status are found among a million others."""

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any] | None:
        found: QuerySet[Any] | None = super().queryset(request, queryset)
        chosen = self.lookup_val[-1] if self.lookup_val else None
        if found is None or chosen is None or chosen not in _HINTS:
            return found
        return found.filter(_HINTS[chosen])


class JobTypeFilter(admin.SimpleListFilter):
    """Filter by job type: those of this process, and those of the newest jobs."""

    title = _("job type")
    parameter_name = "name"
    field = "name"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return _choices({*registry.names(), *_seen(request)[0]}, self.value())

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        value = self.value()
        return queryset if value is None else queryset.filter(**{self.field: value})


class DeadJobTypeFilter(JobTypeFilter):
    """Filter dead letters by the type of their job."""

    field = "job__name"


class QueueFilter(admin.SimpleListFilter):
    """Filter by queue: those that job types name, and those of the newest jobs."""

    title = _("queue")
    parameter_name = "queue_name"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        declared = {registry.get(name).options.queue_name for name in registry.names()}
        return _choices({*declared, *_seen(request)[1]}, self.value())

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        value = self.value()
        return queryset if value is None else queryset.filter(queue_name=value)


class SinceFilter(admin.SimpleListFilter):
    """Filter by the time in which a job has ended or, while it lives, was enqueued.

    The address takes any duration: `?since=90m`.
    """

    title = _("since")
    parameter_name = "since"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [
            ("15m", _("Past 15 minutes")),
            ("1h", _("Past hour")),
            ("12h", _("Past 12 hours")),
            ("1d", _("Past day")),
            ("7d", _("Past 7 days")),
        ]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        text = self.value()
        if text is None:
            return queryset
        try:
            window = parse_duration(text)
        except ValueError:
            return queryset.none()
        return self.within(queryset, window)

    def within(self, queryset: QuerySet[Any], window: timedelta) -> QuerySet[Any]:
        """Return the rows of the time window that ends now."""
        start = ClockNow() - window
        return queryset.filter(
            Q(finished_at__gte=start) | Q(finished_at__isnull=True, enqueued_at__gte=start)
        )


class DiedSinceFilter(SinceFilter):
    """Filter dead letters by the time of death."""

    def within(self, queryset: QuerySet[Any], window: timedelta) -> QuerySet[Any]:
        return queryset.filter(died_at__gte=ClockNow() - window)


class ReplayedFilter(admin.SimpleListFilter):
    """Tell dead letters that somebody has dealt with from the others."""

    title = _("replayed")
    parameter_name = "replayed"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [("no", _("No")), ("yes", _("Yes"))]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        chosen = {"no": True, "yes": False}.get(self.value() or "")
        return queryset if chosen is None else queryset.filter(replayed_at__isnull=chosen)


def _choices(names: Iterable[str], chosen: str | None) -> list[tuple[str, str]]:
    offered = sorted(names)[:MAX_CHOICES]
    if chosen is not None and chosen not in offered:
        offered.append(chosen)
    return [(name, name) for name in offered]


def _seen(request: HttpRequest) -> tuple[set[str], set[str]]:
    """Return the job types and the queues of the newest jobs, read once a request."""
    found: tuple[set[str], set[str]] | None = getattr(request, "_durable_seen", None)
    if found is None:
        newest = Job.objects.order_by("-pk").values_list("name", "queue_name")[:SAMPLE]
        pairs = list(newest)
        found = ({name for name, _queue in pairs}, {queue for _name, queue in pairs})
        request._durable_seen = found  # type: ignore[attr-defined]
    return found
