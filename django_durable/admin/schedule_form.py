"""The form of a schedule: a wrong rule is an error of the form."""

from __future__ import annotations

from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_durable import payloads, schedules
from django_durable.admin.form_fields import DurationText, PayloadText
from django_durable.conf import conf
from django_durable.jobtypes import registry
from django_durable.models import Schedule


class ScheduleForm(forms.ModelForm):  # type: ignore[type-arg]
    """Check a schedule as its declaration in code is checked."""

    every = DurationText(
        label=_("every"), required=False, help_text=_("In place of a cron expression: 15m, 2h, …")
    )
    jitter = DurationText(
        label=_("jitter"), required=False, help_text=_("Each run lies up to so much off its time.")
    )
    args = PayloadText(list, label=_("arguments"), help_text=_("A JSON list"))
    kwargs = PayloadText(dict, label=_("keyword arguments"), help_text=_("A JSON object"))

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

    def clean(self) -> dict[str, Any]:
        """Refuse a wrong rule, and arguments that the job type does not take."""
        values = super().clean() or self.cleaned_data
        if self.errors:
            return values
        try:
            schedules.make_rule(**{name: values[name] for name in schedules.RULE_FIELDS})
            self._check_call(values)
        except (TypeError, ValueError) as error:
            raise ValidationError(str(error)) from error
        return values

    def _check_call(self, values: dict[str, Any]) -> None:
        job_type = registry.find(values["job_name"])
        if job_type is None or "args" not in values:
            # Without the permission to see payloads there is no such field.
            return
        takes_context = job_type.options.takes_context
        call = (values["args"], values["kwargs"])
        payloads.bind_arguments(job_type.func, *call, takes_context=takes_context)
        names = payloads.argument_names(job_type.func, takes_context=takes_context)
        payloads.encode_arguments(*call, names=names, limit=conf.max_payload)
