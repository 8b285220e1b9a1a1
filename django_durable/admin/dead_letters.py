"""Dead letters: what failed for good, and its replay."""

from __future__ import annotations

from typing import Any, ClassVar

from django.contrib import admin
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.html import format_html
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from django_durable.admin import display, filters
from django_durable.admin.attempts import as_uuid
from django_durable.admin.operating import OperationsAdmin
from django_durable.admin.operations import REPLAY
from django_durable.models import DeadLetter, Job


@admin.register(DeadLetter)
class DeadLetterAdmin(OperationsAdmin):
    """List dead letters, newest first; none goes without its job, which it is needed to replay."""

    operations = (REPLAY,)
    actions = ("replay_selected",)
    list_display = (
        "job_cell",
        "reason_word",
        "error_class",
        "message_line",
        display.moment("died_at", _("died")),
        "replay_link",
    )
    list_filter = (
        "reason",
        filters.ReplayedFilter,
        filters.DeadJobTypeFilter,
        filters.DiedSinceFilter,
    )
    list_select_related = ("job",)
    list_columns = (
        "job__name",
        "reason",
        "error_class",
        "message",
        "attempt_count",
        "died_at",
        "replayed_as",
        "replayed_at",
        "replayed_by",
    )
    search_fields = ("job", "job__name", "error_class")
    search_help_text = _("Id of a job, or the beginning of a job type or an error class")
    ordering = ("-died_at",)
    fieldsets: ClassVar[Any] = [
        (
            None,
            {
                "fields": [
                    ("job_name", "job_link"),
                    ("reason", "attempt_count", display.moment("died_at", _("died"))),
                ]
            },
        ),
        (_("Error"), {"fields": ["error_class", "message_text", "traceback_text"]}),
        (
            _("Replay"),
            {
                "fields": [
                    (
                        "replay_link",
                        display.moment("replayed_at", _("replayed")),
                        "replayed_by",
                    )
                ]
            },
        ),
    ]
    payload: ClassVar[dict[str, Any]] = {
        "message_line": _("message"),
        "message_text": _("message"),
        "traceback_text": _("traceback"),
    }
    payload_columns = frozenset({"message", "traceback"})

    def has_replay_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return request.user.has_perm("durable.replay_job")

    def chosen(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return super().chosen(request, queryset).select_related("job")

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        term = search_term.strip()
        if not term:
            return queryset, False
        found = Q(error_class__startswith=term) | Q(job__name__startswith=term)
        if (job_id := as_uuid(term)) is not None:
            found |= Q(job=job_id)
        return queryset.filter(found), False

    @admin.action(permissions=["replay"], description=_("Replay selected %(verbose_name_plural)s"))
    def replay_selected(
        self, request: HttpRequest, queryset: QuerySet[DeadLetter]
    ) -> HttpResponse | None:
        return self.operate(request, queryset, REPLAY)

    @admin.display(description=_("job"))
    def job_cell(self, obj: DeadLetter) -> str:
        return display.name_and_id(obj.job.name, obj.job_id)

    @admin.display(description=_("reason"))
    def reason_word(self, obj: DeadLetter) -> str:
        # The label goes on to explain itself after a colon.
        word = obj.get_reason_display().partition(":")[0]
        count = obj.attempt_count
        attempts = ngettext("%(count)d attempt", "%(count)d attempts", count) % {"count": count}
        return format_html('{}<br><span class="durable-note">{}</span>', word, attempts)

    @admin.display(description=_("job type"))
    def job_name(self, obj: DeadLetter) -> str:
        return str(obj.job.name)

    @admin.display(description=_("job"))
    def job_link(self, obj: DeadLetter) -> str:
        return display.link(self.admin_site, Job, obj.job_id)

    @admin.display(description=_("replayed as"))
    def replay_link(self, obj: DeadLetter) -> Any:
        if obj.replayed_as_id is not None:
            return display.link(self.admin_site, Job, obj.replayed_as_id)
        return _("a job that is gone") if obj.replayed_at else display.EMPTY

    @admin.display(description=_("message"))
    def message_line(self, obj: DeadLetter) -> str:
        return display.one_line(obj.message)

    @admin.display(description=_("message"))
    def message_text(self, obj: DeadLetter) -> str:
        return display.block(obj.message)

    @admin.display(description=_("traceback"))
    def traceback_text(self, obj: DeadLetter) -> str:
        return display.block(obj.traceback)
