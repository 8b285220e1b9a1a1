"""The form of a schedule: a wrong rule is an error of the form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_durable import payloads, schedules
from django_durable.admin.form_fields import DurationText, PayloadText
from django_durable.conf import conf
from django_durable.cron import Cron
from django_durable.jobtypes import registry
from django_durable.models import Schedule


class ScheduleForm(forms.ModelForm):  # type: ignore[type-arg]
    """Check a schedule as its declaration in code is checked."""

    every = DurationText(
        label=_("Every"), required=False, help_text=_("In place of a cron expression: 15m, 2h, …")
    )
    jitter = DurationText(
        label=_("Jitter"), required=False, help_text=_("Each run lies up to so much off its time.")
    )
    args = PayloadText(list, label=_("Arguments"), help_text=_("A JSON list"))
    kwargs = PayloadText(dict, label=_("Keyword arguments"), help_text=_("A JSON object"))

    class Meta:
        model = Schedule
        fields = (
            "job_name",
            "name",
            "cron",
            "every",
            "timezone",
            "enabled",
            "starts_at",
            "until",
            "catch_up",
            "overlap",
            "jitter",
            "run_on_create",
            "args",
            "kwargs",
        )

    def clean_job_name(self) -> str:
        """Refuse a job type that this process does not know, unless the row has it already."""
        name: str = self.cleaned_data["job_name"]
        if registry.find(name) is None and name != self.instance.job_name:
            raise ValidationError(gettext("There is no job type of this name."))
        return name

    def clean_cron(self) -> str | None:
        """Refuse what is no cron expression."""
        cron: str | None = self.cleaned_data["cron"]
        if cron:
            self._ask("cron", Cron, cron, "UTC")
        return cron

    def clean_timezone(self) -> str:
        """Refuse what is no time zone."""
        timezone: str = self.cleaned_data["timezone"]
        self._ask("timezone", Cron, "@daily", timezone)
        return timezone

    def clean(self) -> dict[str, Any]:
        """Refuse a wrong rule, and arguments that the job type does not take: both at once."""
        values = super().clean() or self.cleaned_data
        if not self.errors.keys() & set(schedules.RULE_FIELDS):
            rule = {name: values[name] for name in schedules.RULE_FIELDS}
            self._ask(None, schedules.make_rule, **rule)
        if not self.errors.keys() & {"job_name", "args", "kwargs"}:
            self._ask(None, self._check_call, values)
        return values

    def _ask(self, field: str | None, check: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        try:
            check(*args, **kwargs)
        except (TypeError, ValueError) as error:
            self.add_error(field, ValidationError(str(error)))

    def _check_call(self, values: dict[str, Any]) -> None:
        job_type = registry.find(values["job_name"])
        if job_type is None:
            return
        takes_context = job_type.options.takes_context
        call = (values["args"], values["kwargs"])
        payloads.bind_arguments(job_type.func, *call, takes_context=takes_context)
        names = payloads.argument_names(job_type.func, takes_context=takes_context)
        payloads.encode_arguments(*call, names=names, limit=conf.max_payload)


class CallKeepingForm(ScheduleForm):
    """Leave the arguments as they are, for users who may not see them."""

    args = None  # type: ignore[assignment]
    kwargs = None  # type: ignore[assignment]

    def _check_call(self, values: dict[str, Any]) -> None:
        """Refuse another job type that does not take what the row has: nothing, if it is new."""
        if not self.instance._state.adding and "job_name" not in self.changed_data:
            return
        row = self.instance
        try:
            super()._check_call({**values, "args": row.args, "kwargs": row.kwargs})
        except (TypeError, ValueError):
            # What is wrong would tell of them.
            raise ValueError(
                gettext("This job type takes other arguments, which you may not see or give.")
            ) from None
