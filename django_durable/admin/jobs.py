"""Jobs: the list, and the page of one with all that belongs to it."""

from __future__ import annotations

from typing import Any, ClassVar

from django.contrib import admin
from django.contrib.admin.utils import unquote
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import PermissionDenied
from django.db.models import F, Prefetch, Q, QuerySet, prefetch_related_objects
from django.http import Http404, HttpRequest, HttpResponse
from django.urls import path
from django.utils.translation import gettext_lazy as _

from django_durable.admin import display, filters
from django_durable.admin.attempts import as_uuid
from django_durable.admin.base import BoundedChangeList
from django_durable.admin.job_deletion import DeletesTrees
from django_durable.admin.job_displays import PAYLOAD_FIELDS, JobDisplays
from django_durable.admin.job_forms import ENQUEUE, FORK, SIGNAL
from django_durable.admin.job_page import related
from django_durable.admin.job_sections import sections
from django_durable.admin.operating import OperationsAdmin
from django_durable.admin.operations import CANCEL, REPLAY, RUN_NOW
from django_durable.admin.payload_text import payload_text
from django_durable.models import Attempt, DeadLetter, Job
from django_durable.querysets import ClockNow


class JobChangeList(BoundedChangeList):
    """List jobs with the error class of the latest attempt of each, by one query more."""

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        self.result_list: Any = list(self.result_list)
        latest = Attempt.objects.filter(job__in=self.result_list, number=F("job__attempt"))
        errors = dict(latest.values_list("job", "error_class"))
        for job in self.result_list:
            job.error_class = errors.get(job.pk, "")


@admin.register(Job)
class JobAdmin(JobDisplays, DeletesTrees, OperationsAdmin):
    """List jobs, newest first, and operate on them."""

    operations = (CANCEL, RUN_NOW, REPLAY, SIGNAL, FORK, ENQUEUE)
    actions = (
        "cancel_selected",
        "run_now_selected",
        "replay_selected",
        "delete_selected",
    )
    list_display = (
        "job_cell",
        "queue_name",
        "status_cell",
        display.moment("enqueued_at", _("enqueued")),
        "due_or_ended",
    )
    list_filter = (
        ("status", filters.StatusFilter),
        filters.JobTypeFilter,
        filters.QueueFilter,
        filters.SinceFilter,
    )
    list_columns = (
        "name",
        "queue_name",
        "status",
        "attempt",
        "max_attempts",
        "rejections",
        "priority",
        "enqueued_at",
        "due_at",
        "finished_at",
        "cancel_requested_at",
        "parent",
        "root",
    )
    ordering = ("-pk",)
    search_fields = ("id", "idempotency_key", "name")
    search_help_text = _("Id or idempotency key, or the beginning of a job type")
    payload: ClassVar[dict[str, Any]] = {
        "arguments": _("arguments"),
        "keyword_arguments": _("keyword arguments"),
        "result_text": _("result"),
    }
    payload_columns = frozenset({"args", "kwargs", "return_value"})

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return request.user.has_perm("durable.delete_job")

    def has_cancel_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return request.user.has_perm("durable.cancel_job")

    def has_retry_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return request.user.has_perm("durable.retry_job")

    def has_replay_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return request.user.has_perm("durable.replay_job")

    def has_signal_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return request.user.has_perm("durable.signal_job")

    def has_fork_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return request.user.has_perm("durable.fork_job")

    def has_enqueue_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return request.user.has_perm("durable.enqueue_job")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Job]:
        jobs: QuerySet[Job] = super().get_queryset(request)
        return jobs.annotate(now=ClockNow())

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return JobChangeList

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        return [(title, {"fields": self.shown(request, fields)}) for title, fields in sections(obj)]

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        term = search_term.strip()
        if not term:
            return queryset, False
        job_id = as_uuid(term)
        # Where it is an id it is no name, and the indexes of id and key then suffice.
        other = Q(name__startswith=term) if job_id is None else Q(pk=job_id)
        return queryset.filter(other | Q(idempotency_key=term)), False

    def get_urls(self) -> list[Any]:
        """Add the page of a payload's full text."""
        full_text = path(
            "<path:object_id>/payload/<slug:field>/",
            self.admin_site.admin_view(self.payload_view),
            name="durable_job_payload",
        )
        return [full_text, *super().get_urls()]

    def prepare(self, objects: list[Any]) -> None:
        """Fetch the dead letters without their texts."""
        letters = DeadLetter.all_objects.defer("message", "traceback")
        prefetch_related_objects(objects, Prefetch("dead_letter", letters))

    def payload_view(self, request: HttpRequest, object_id: str, field: str) -> HttpResponse:
        """Show all of the arguments, the keyword arguments or the result as plain text."""
        column = PAYLOAD_FIELDS.get(field)
        job = self.get_object(request, unquote(object_id)) if column else None
        if not (self.has_view_permission(request, job) and display.may_see_payload(request)):
            raise PermissionDenied
        if column is None or job is None:
            raise Http404
        text, _cut = payload_text(getattr(job, column))
        return HttpResponse(
            text,
            content_type="text/plain; charset=utf-8",
            headers={"X-Content-Type-Options": "nosniff"},
        )

    def render_change_form(
        self, request: HttpRequest, context: Any, *args: Any, **kwargs: Any
    ) -> HttpResponse:
        """Add what belongs to the job: attempts, dead letter, steps, signals, children."""
        job = kwargs.get("obj")
        if job is not None:
            context.update(related(self, request, job))
        return super().render_change_form(request, context, *args, **kwargs)

    @admin.action(permissions=["cancel"], description=_("Cancel selected %(verbose_name_plural)s"))
    def cancel_selected(self, request: HttpRequest, queryset: QuerySet[Job]) -> HttpResponse | None:
        return self.operate(request, queryset, CANCEL)

    @admin.action(permissions=["retry"], description=_("Run selected %(verbose_name_plural)s now"))
    def run_now_selected(
        self, request: HttpRequest, queryset: QuerySet[Job]
    ) -> HttpResponse | None:
        return self.operate(request, queryset, RUN_NOW)

    @admin.action(
        permissions=["replay"], description=_("Replay selected dead %(verbose_name_plural)s")
    )
    def replay_selected(self, request: HttpRequest, queryset: QuerySet[Job]) -> HttpResponse | None:
        return self.operate(request, queryset, REPLAY)
