"""Workers: who they are, and whether they live."""

from __future__ import annotations

from typing import Any, ClassVar

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_durable import inspection
from django_durable.admin import display
from django_durable.admin.base import ReadOnlyAdmin
from django_durable.durations import format_duration
from django_durable.models import Job, Worker


@admin.register(Worker)
class WorkerAdmin(ReadOnlyAdmin):
    """List the `manage.py worker` commands that run, or were lost less than a day ago."""

    list_display = (
        "name",
        "state",
        "hostname",
        "pid",
        "slots",
        "queue_names",
        display.moment("started_at", _("started")),
        display.moment("heartbeat_at", _("heartbeat")),
        "running_jobs",
    )
    list_columns = (
        "name",
        "hostname",
        "pid",
        "slots",
        "queues",
        "excluded_queues",
        "draining",
        "started_at",
        "heartbeat_at",
        "lease",
    )
    ordering = ("name", "-started_at")
    fieldsets: ClassVar[Any] = [
        (
            None,
            {
                "fields": [
                    ("name", "state", "running_jobs"),
                    ("hostname", "pid", "incarnation"),
                    (
                        display.moment("started_at", _("started")),
                        display.moment("heartbeat_at", _("heartbeat")),
                        "lease_text",
                    ),
                ]
            },
        ),
        (_("Serves"), {"fields": [("slots", "queue_names", "capability_names"), "job_type_names"]}),
    ]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return inspection.with_liveness(super().get_queryset(request))

    @admin.display(description=_("state"))
    def state(self, obj: Any) -> str:
        if not obj.alive:
            name, words = "dead", gettext("dead")
        elif obj.draining:
            name, words = "waiting", gettext("draining")
        else:
            name, words = "running", gettext("running")
        return format_html('<span class="durable-status durable-{}">{}</span>', name, words)

    @admin.display(description=_("queues"))
    def queue_names(self, obj: Worker) -> str:
        names = ", ".join(obj.queues) or gettext("all")
        if not obj.excluded_queues:
            return names
        without = ", ".join(obj.excluded_queues)
        return gettext("%(queues)s, without %(excluded)s") % {"queues": names, "excluded": without}

    @admin.display(description=_("job types"))
    def job_type_names(self, obj: Worker) -> str:
        return "\n".join(obj.job_names) or display.EMPTY

    @admin.display(description=_("capabilities"))
    def capability_names(self, obj: Worker) -> str:
        return ", ".join(obj.capabilities) or display.EMPTY

    @admin.display(description=_("lease"))
    def lease_text(self, obj: Worker) -> str:
        return format_duration(obj.lease) if obj.lease is not None else display.EMPTY

    @admin.display(description=_("jobs"))
    def running_jobs(self, obj: Worker) -> str:
        if not self.admin_site.is_registered(Job):
            return display.EMPTY
        url = display.list_url(
            self.admin_site, Job, status__exact=Job.Status.RUNNING, claimer__exact=obj.pk
        )
        return format_html('<a href="{}">{}</a>', url, gettext("what it runs"))
