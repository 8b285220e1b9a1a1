"""Queues: how much lies in each, what was decided about it, and how to decide otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from django.contrib import admin
from django.contrib.admin.views.main import ChangeList
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.html import format_html
from django.utils.http import urlencode
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from django_durable import inspection, operations
from django_durable.admin import display
from django_durable.admin.base import BoundedChangeList
from django_durable.admin.operating import Operation, OperationsAdmin, switch
from django_durable.durations import format_duration
from django_durable.models import Job, Queue

# How many rows of each lane a page counts at most.
COUNTED = 1000
LIMITS = ("max_running", "rate_limit")


def _pause(model_admin: OperationsAdmin, request: HttpRequest, rows: Sequence[Queue]) -> None:
    switch(
        model_admin,
        request,
        rows,
        change=lambda row: operations.switch_queue(row.name, paused=True),
        record=gettext("Paused"),
        told=lambda count: ngettext(
            "%(count)d queue was paused.", "%(count)d queues were paused.", count
        ),
    )


def _resume(model_admin: OperationsAdmin, request: HttpRequest, rows: Sequence[Queue]) -> None:
    switch(
        model_admin,
        request,
        rows,
        change=lambda row: operations.switch_queue(row.name, paused=False),
        record=gettext("Resumed"),
        told=lambda count: ngettext(
            "%(count)d queue was resumed.", "%(count)d queues were resumed.", count
        ),
    )


PAUSE = Operation(
    action="pause_selected",
    slug="pause",
    permission="pause",
    label=_("Pause"),
    title=_("Pause queues"),
    warning=_("No more of their jobs start until they are resumed; what runs finishes."),
    button=_("Yes, pause"),
    outlook=lambda row: gettext("is paused already") if row.paused else gettext("is paused"),
    possible=lambda row: not row.paused,
    perform=_pause,
    confirm=False,
)
RESUME = Operation(
    action="resume_selected",
    slug="resume",
    permission="pause",
    label=_("Resume"),
    title=_("Resume queues"),
    warning=_("Their jobs start again, at once."),
    button=_("Yes, resume"),
    outlook=lambda row: gettext("is resumed") if row.paused else gettext("is not paused"),
    possible=lambda row: bool(row.paused),
    perform=_resume,
    confirm=False,
)


class QueueChangeList(BoundedChangeList):
    """List the rows with what lies in each queue, and name the queues that have no row."""

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        counts = {queue.name: queue for queue in inspection.queue_counts(COUNTED)}
        self.result_list: Any = list(self.result_list)
        for row in self.result_list:
            row.counts = counts.get(row.name, inspection.QueueCounts(row.name))
        add_url = display.page_url(self.model_admin.admin_site, Queue, "add")
        self.undecided = [
            {
                "name": queue.name,
                "ready": number(queue.ready, queue),
                "running": queue.running,
                "oldest": age(queue),
                "add_url": f"{add_url}?{urlencode({'name': queue.name})}",
            }
            for queue in counts.values()
            if not queue.has_row
        ]


def number(count: int, queue: inspection.QueueCounts) -> str:
    """Return a count of a page, which stops at a limit."""
    return f"{count}+" if queue.capped else str(count)


def age(queue: inspection.QueueCounts) -> str:
    """Return for how long the first due job has been waiting."""
    seconds = queue.oldest_ready_seconds
    return display.EMPTY if seconds is None else format_duration(timedelta(seconds=seconds))


@admin.register(Queue)
class QueueAdmin(OperationsAdmin):
    """List the queues that have a row, and name the others; pause, resume and limit them."""

    change_list_template = "admin/durable/queue/change_list.html"
    operations = (PAUSE, RESUME)
    actions = ("pause_selected", "resume_selected")
    list_display = (
        "name",
        "state",
        "ready",
        "running",
        "oldest",
        "max_running",
        "rate_limit",
    )
    list_columns = ("name", "paused", *LIMITS)
    ordering = ("name",)
    search_fields = ("name__startswith",)
    readonly_fields = ("state", "ready", "running", "oldest")

    def has_add_permission(self, request: HttpRequest) -> bool:
        return admin.ModelAdmin.has_add_permission(self, request)

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return admin.ModelAdmin.has_change_permission(self, request, obj)

    def has_pause_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return request.user.has_perm("durable.pause_queue")

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return QueueChangeList

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        # Another name would be another queue.
        names = super().get_readonly_fields(request, obj)
        return names if obj is None else ("name", *names)

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        limits = (_("Limits, across all workers"), {"fields": list(LIMITS)})
        if obj is None:
            return [(None, {"fields": ["name"]}), limits]
        return [(None, {"fields": [("name", "state"), ("ready", "running", "oldest")]}), limits]

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        """Set what the form has changed; whether the queue is paused is not its matter."""
        changed = [name for name in LIMITS if name in form.changed_data]
        operations.limit_queue(obj.name, **{name: form.cleaned_data[name] for name in changed})

    @admin.display(description=_("state"))
    def state(self, obj: Queue) -> str:
        name, words = ("waiting", gettext("paused")) if obj.paused else ("running", gettext("open"))
        return format_html('<span class="durable-status durable-{}">{}</span>', name, words)

    def _counts(self, obj: Any) -> inspection.QueueCounts:
        if not hasattr(obj, "counts"):
            found = (each for each in inspection.queue_counts(COUNTED) if each.name == obj.name)
            obj.counts = next(found, inspection.QueueCounts(obj.name))
        counts: inspection.QueueCounts = obj.counts
        return counts

    @admin.display(description=_("ready"))
    def ready(self, obj: Queue) -> str:
        counts = self._counts(obj)
        return self._jobs(obj, Job.Status.READY, number(counts.ready, counts))

    @admin.display(description=_("running"))
    def running(self, obj: Queue) -> str:
        return self._jobs(obj, Job.Status.RUNNING, str(self._counts(obj).running))

    def _jobs(self, obj: Queue, status: str, shown: str) -> str:
        if not self.admin_site.is_registered(Job):
            return shown
        filters = {"queue_name": obj.name, "status__exact": status}
        url = display.list_url(self.admin_site, Job, **filters)
        return format_html('<a href="{}">{}</a>', url, shown)

    @admin.display(description=_("oldest due"))
    def oldest(self, obj: Queue) -> str:
        return age(self._counts(obj))

    @admin.action(permissions=["pause"], description=_("Pause selected %(verbose_name_plural)s"))
    def pause_selected(self, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse | None:
        return self.operate(request, queryset, PAUSE)

    @admin.action(permissions=["pause"], description=_("Resume selected %(verbose_name_plural)s"))
    def resume_selected(self, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse | None:
        return self.operate(request, queryset, RESUME)
