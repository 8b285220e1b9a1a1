"""Schedules: the list, the form, and what can be done to them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.html import format_html
from django.utils.timezone import localtime
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from django_durable import schedules
from django_durable.admin import display
from django_durable.admin.operating import (
    Operation,
    OperationsAdmin,
    one_commit,
    switch,
    tell_of_new_jobs,
)
from django_durable.admin.schedule_form import CallKeepingForm, ScheduleForm
from django_durable.durations import format_duration
from django_durable.models import Job, Schedule

PREVIEWED = 5


def _enable(model_admin: OperationsAdmin, request: HttpRequest, rows: Sequence[Any]) -> None:
    switch(
        model_admin,
        request,
        rows,
        change=lambda row: bool(row.enable()),
        record=gettext("Enabled"),
        told=lambda count: ngettext(
            "%(count)d schedule was enabled.", "%(count)d schedules were enabled.", count
        ),
    )


def _disable(model_admin: OperationsAdmin, request: HttpRequest, rows: Sequence[Any]) -> None:
    switch(
        model_admin,
        request,
        rows,
        change=lambda row: bool(row.disable()),
        record=gettext("Disabled"),
        told=lambda count: ngettext(
            "%(count)d schedule was disabled.", "%(count)d schedules were disabled.", count
        ),
    )


def _run_now(model_admin: OperationsAdmin, request: HttpRequest, rows: Sequence[Any]) -> None:
    made: list[Job] = []
    pending = 0
    for row in rows:
        try:
            with one_commit():
                job = row.run_now()
                if job.created:
                    made.append(job)
                    record = gettext("Run now as job %(job)s") % {"job": job.pk}
                    model_admin.log_change(request, row, record)
                else:
                    pending += 1
        except Exception as error:  # noqa: BLE001 - users' code makes the keys, which may raise anything
            why = display.error(request, error)
            model_admin.message_user(request, f"{row}: {why}", messages.ERROR)
    if made:
        tell_of_new_jobs(model_admin, request, made, gettext("Made the new job {}."))
    if pending:
        text = ngettext(
            "%(count)d schedule has a job already that was to run now and has not started.",
            "%(count)d schedules have jobs already that were to run now and have not started.",
            pending,
        )
        model_admin.message_user(request, text % {"count": pending}, messages.WARNING)


ENABLE = Operation(
    action="enable_selected",
    slug="enable",
    permission="change",
    label=_("Enable"),
    title=_("Enable schedules"),
    warning=_("They run from their next time on; what they have missed is not made up for."),
    button=_("Yes, enable"),
    outlook=lambda row: gettext("is on already") if row.enabled else gettext("is turned on"),
    possible=lambda row: not row.enabled,
    perform=_enable,
    confirm=False,
)
DISABLE = Operation(
    action="disable_selected",
    slug="disable",
    permission="change",
    label=_("Disable"),
    title=_("Disable schedules"),
    warning=_("They make no more jobs until they are enabled; the jobs that there are go on."),
    button=_("Yes, disable"),
    outlook=lambda row: gettext("is turned off") if row.enabled else gettext("is off already"),
    possible=lambda row: bool(row.enabled),
    perform=_disable,
    confirm=False,
)
RUN_SCHEDULE_NOW = Operation(
    action="run_now_selected",
    slug="run-now",
    permission="change",
    label=_("Run now"),
    title=_("Run schedules now"),
    warning=_("Each makes a job at once, unless one that was made so has not started yet."),
    button=_("Yes, run now"),
    outlook=lambda row: gettext("makes a job"),
    possible=lambda row: True,
    perform=_run_now,
    confirm=False,
)


def _state(obj: Schedule, why: Any) -> str:
    if obj.broken:
        name, words = "dead", gettext("broken: %(why)s") % {"why": why}
    elif obj.enabled:
        name, words = "running", gettext("on")
    else:
        name, words = "waiting", gettext("off")
    return format_html('<span class="durable-status durable-{}">{}</span>', name, words)


@admin.register(Schedule)
class ScheduleAdmin(OperationsAdmin):
    """List schedules, make and change them, and operate on them."""

    form = ScheduleForm
    operations = (RUN_SCHEDULE_NOW, ENABLE, DISABLE)
    actions = ("enable_selected", "disable_selected", "run_now_selected", "delete_selected")
    list_display = (
        "name",
        "job_name",
        "rule_text",
        "state",
        display.moment("next_run_at", _("next run")),
        display.moment("last_run_at", _("last run")),
        "skipped",
    )
    list_columns = (
        "name",
        "job_name",
        "cron",
        "every",
        "timezone",
        "enabled",
        "broken",
        "next_run_at",
        "last_run_at",
        "skipped",
    )
    list_filter = ("enabled", "declared")
    ordering = ("job_name", "name")
    search_fields = ("name__startswith", "job_name__startswith")
    readonly_fields = (
        "state",
        "state_without_message",
        "times",
        "coming",
        "skipped_text",
        "declared",
    )
    payload_columns = frozenset({"args", "kwargs", "broken", "declaration"})

    def has_add_permission(self, request: HttpRequest) -> bool:
        return admin.ModelAdmin.has_add_permission(self, request)

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return admin.ModelAdmin.has_change_permission(self, request, obj)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return admin.ModelAdmin.has_delete_permission(self, request, obj)

    def get_form(
        self, request: HttpRequest, obj: Any = None, change: bool = False, **kwargs: Any
    ) -> Any:
        if not display.may_see_payload(request):
            kwargs["form"] = CallKeepingForm
        return super().get_form(request, obj, change, **kwargs)

    def _state(self, request: HttpRequest) -> str:
        return "state" if display.may_see_payload(request) else "state_without_message"

    def get_list_display(self, request: HttpRequest) -> Any:
        shown = super().get_list_display(request)
        return [self._state(request) if name == "state" else name for name in shown]

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        seen = display.may_see_payload(request)
        sections: list[Any] = [
            (None, {"fields": [("job_name", "name"), "enabled"]}),
            (_("Rule"), {"fields": ["cron", "every", "timezone", ("starts_at", "until"),
                                    "catch_up", "overlap", "jitter", "run_on_create"]}),
        ]  # fmt: skip
        if seen:
            sections.append((_("Payload"), {"fields": ["args", "kwargs"]}))
        if obj is not None:
            standing = [self._state(request), "times", "coming", "skipped_text", "declared"]
            sections.insert(1, (_("Standing"), {"fields": standing}))
        return sections

    @admin.display(description=_("rule"))
    def rule_text(self, obj: Schedule) -> str:
        if obj.cron:
            return f"{obj.cron} ({obj.timezone})"
        return display.EMPTY if obj.every is None else f"every {format_duration(obj.every)}"

    @admin.display(description=_("state"))
    def state(self, obj: Schedule) -> str:
        return _state(obj, obj.broken)

    @admin.display(description=_("state"))
    def state_without_message(self, obj: Schedule) -> str:
        if obj.broken in ("", schedules.NO_WORKER, schedules.NOT_DECLARED):
            return _state(obj, obj.broken)
        return _state(obj, schedules.class_in(obj.broken) or display.HIDDEN)

    @admin.display(description=_("runs"))
    def times(self, obj: Schedule) -> str:
        return format_html(
            gettext("next {}, last {}"),
            display.time(obj.next_run_at),
            display.time(obj.last_run_at),
        )

    @admin.display(description=_("coming"))
    def coming(self, obj: Schedule) -> str:
        try:
            coming = obj.preview(PREVIEWED)
        except ValueError as error:
            # What is wrong with the rule, which everybody sees who sees the page.
            return str(error)
        lines = [f"{localtime(moment):%Y-%m-%d %H:%M:%S %Z}" for moment in coming]
        return display.block("\n".join(lines)) if lines else display.EMPTY

    @admin.display(description=_("skipped runs"))
    def skipped_text(self, obj: Schedule) -> str:
        return format_html("{}, {}", obj.skipped, display.time(obj.last_skipped_at))

    @admin.action(permissions=["change"], description=_("Enable selected %(verbose_name_plural)s"))
    def enable_selected(self, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse | None:
        return self.operate(request, queryset, ENABLE)

    @admin.action(permissions=["change"], description=_("Disable selected %(verbose_name_plural)s"))
    def disable_selected(
        self, request: HttpRequest, queryset: QuerySet[Any]
    ) -> HttpResponse | None:
        return self.operate(request, queryset, DISABLE)

    @admin.action(permissions=["change"], description=_("Run selected %(verbose_name_plural)s now"))
    def run_now_selected(
        self, request: HttpRequest, queryset: QuerySet[Any]
    ) -> HttpResponse | None:
        return self.operate(request, queryset, RUN_SCHEDULE_NOW)

    @admin.action(permissions=["delete"], description=_("Delete selected %(verbose_name_plural)s"))
    def delete_selected(self, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse | None:
        """Do what Django's action does; `confirm=yes` confirms it as it does every other one."""
        from django.contrib.admin import actions

        if request.POST.get("confirm") == "yes":
            confirmed = request.POST.copy()
            confirmed["post"] = "yes"
            request.POST = confirmed  # type: ignore[assignment]
        response: HttpResponse | None = actions.delete_selected(self, request, queryset)
        return response
