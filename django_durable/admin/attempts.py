"""The attempts that did not succeed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar
from uuid import UUID

from django.contrib import admin
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from django_durable.admin import display
from django_durable.admin.base import ReadOnlyAdmin
from django_durable.models import Attempt, Job


@admin.register(Attempt)
class AttemptAdmin(ReadOnlyAdmin):
    """List the failures of all jobs; who may view jobs may view their attempts."""

    list_display = (
        "attempt",
        "job_link",
        "outcome",
        "error_class",
        "message_line",
        "worker",
        display.moment("finished_at", _("finished")),
    )
    list_filter = ("outcome",)
    list_columns = (
        "job",
        "number",
        "outcome",
        "error_class",
        "message",
        "worker",
        "finished_at",
    )
    search_fields = ("job", "error_class")
    search_help_text = _("Id of a job, or the beginning of an error class")
    ordering = ("-pk",)
    fieldsets: ClassVar[Any] = [
        (None, {"fields": ["job_link", ("number", "outcome", "worker")]}),
        (
            _("Times"),
            {
                "fields": [
                    (
                        display.moment("started_at", _("started")),
                        display.moment("finished_at", _("finished")),
                    )
                ]
            },
        ),
        (_("Error"), {"fields": ["error_class", "message_text", "traceback_text"]}),
    ]
    payload: ClassVar[dict[str, Any]] = {
        "message_line": _("message"),
        "message_text": _("message"),
        "traceback_text": _("traceback"),
    }
    payload_columns = frozenset({"message", "traceback"})

    def has_view_permission(self, request: HttpRequest, obj: Attempt | None = None) -> bool:
        allowed: bool = super().has_view_permission(request, obj)
        return allowed or request.user.has_perm("durable.view_job")

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        term = search_term.strip()
        if not term:
            return queryset, False
        found = Q(error_class__startswith=term)
        if (job_id := as_uuid(term)) is not None:
            found |= Q(job=job_id)
        return queryset.filter(found), False

    @admin.display(description=_("attempt"))
    def attempt(self, obj: Attempt) -> str:
        return str(obj.number)

    @admin.display(description=_("job"))
    def job_link(self, obj: Attempt) -> str:
        return display.link(self.admin_site, Job, obj.job_id)

    @admin.display(description=_("message"))
    def message_line(self, obj: Attempt) -> str:
        return display.one_line(obj.message)

    @admin.display(description=_("message"))
    def message_text(self, obj: Attempt) -> str:
        return display.block(obj.message)

    @admin.display(description=_("traceback"))
    def traceback_text(self, obj: Attempt) -> str:
        return display.block(obj.traceback)


def as_uuid(text: str) -> UUID | None:
    """Return the UUID that the text is, or None."""
    try:
        return UUID(text)
    except ValueError:
        return None


def error_texts(
    attempts: Sequence[Attempt], *, message: int, traceback: int
) -> list[dict[str, Any]]:
    """Return the attempts with their texts cut to so many characters, for a page of several."""
    shown = []
    for attempt in attempts:
        message_text, message_cut = display.shortened(attempt.message, message)
        end, traceback_cut = display.shortened(attempt.traceback, traceback, tail=True)
        shown.append(
            {
                "attempt": attempt,
                "message": message_text,
                "traceback": end,
                "cut": message_cut or traceback_cut,
            }
        )
    return shown
