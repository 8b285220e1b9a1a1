"""Workers: who they are, whether they live, and how to ask them to stop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from django.contrib import admin, messages
from django.contrib.admin.views.main import ChangeList
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.html import format_html
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from django_durable import inspection, operations
from django_durable.admin import display
from django_durable.admin.base import BoundedChangeList
from django_durable.admin.operating import Operation, OperationsAdmin, one_commit
from django_durable.durations import format_duration
from django_durable.models import Job, Worker


def _drain_outlook(worker: Any) -> str:
    if not worker.alive:
        return gettext("is dead, left out")
    if worker.draining:
        return gettext("was asked already")
    return gettext("finishes what it runs, and ends")


def _drain(model_admin: OperationsAdmin, request: HttpRequest, workers: Sequence[Any]) -> None:
    living = [worker for worker in workers if worker.alive]
    with one_commit():
        asked = set(operations.drain_workers([worker.pk for worker in living]))
        for worker in living:
            if worker.pk in asked:
                model_admin.log_change(request, worker, gettext("Asked to stop"))
    if asked:
        text = ngettext(
            "%(count)d worker was asked to stop.",
            "%(count)d workers were asked to stop.",
            len(asked),
        )
        model_admin.message_user(request, text % {"count": len(asked)}, messages.SUCCESS)
    if left := len(workers) - len(asked):
        text = ngettext(
            "%(count)d worker is dead or was asked already.",
            "%(count)d workers are dead or were asked already.",
            left,
        )
        model_admin.message_user(request, text % {"count": left}, messages.WARNING)


DRAIN = Operation(
    action="drain_selected",
    slug="drain",
    permission="drain",
    label=_("Drain"),
    title=_("Drain workers"),
    warning=_(
        "Each claims nothing more, finishes what it runs and ends, as it does on SIGTERM. What"
        " starts it, such as a service manager, may start it again."
    ),
    button=_("Yes, drain"),
    outlook=_drain_outlook,
    possible=lambda worker: worker.alive and not worker.draining,
    perform=_drain,
)


class WorkerChangeList(BoundedChangeList):
    """List workers with how many jobs each runs, by one query more."""

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        self.result_list: Any = list(self.result_list)
        running = inspection.running_by_worker()
        for worker in self.result_list:
            # A run leaves its slot before its end is recorded.
            worker.used = min(running.get(worker.name, 0), worker.slots)


@admin.register(Worker)
class WorkerAdmin(OperationsAdmin):
    """List the `manage.py worker` commands that run, or were lost less than a day ago."""

    operations = (DRAIN,)
    actions = ("drain_selected",)
    list_display = (
        "name",
        "state",
        "hostname",
        "pid",
        "slots_used",
        "queue_names",
        "capability_names",
        display.moment("started_at", _("started")),
        display.moment("heartbeat_at", _("heartbeat")),
    )
    list_columns = (
        "name",
        "hostname",
        "pid",
        "slots",
        "queues",
        "excluded_queues",
        "capabilities",
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

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return WorkerChangeList

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return inspection.with_liveness(super().get_queryset(request))

    def has_drain_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return request.user.has_perm("durable.drain_worker")

    @admin.action(permissions=["drain"], description=_("Drain selected %(verbose_name_plural)s"))
    def drain_selected(self, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse | None:
        return self.operate(request, queryset, DRAIN)

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

    @admin.display(description=_("slots used"))
    def slots_used(self, obj: Any) -> str:
        counts = {"used": obj.used, "slots": obj.slots}
        return self._jobs_link(obj, gettext("%(used)d of %(slots)d") % counts)

    @admin.display(description=_("jobs"))
    def running_jobs(self, obj: Worker) -> str:
        return self._jobs_link(obj, gettext("what it runs"), display.EMPTY)

    def _jobs_link(self, obj: Worker, text: str, otherwise: str | None = None) -> str:
        if not self.admin_site.is_registered(Job):
            return text if otherwise is None else otherwise
        url = display.list_url(
            self.admin_site, Job, status__exact=Job.Status.RUNNING, worker__exact=obj.name
        )
        return format_html('<a href="{}">{}</a>', url, text)
