"""The operations on one job that ask for more: send a signal, fork, enqueue again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django import forms
from django.contrib import messages
from django.http import HttpRequest
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_durable import operations
from django_durable.admin import display
from django_durable.admin.form_fields import DurationText, PayloadText
from django_durable.admin.operating import (
    Operation,
    OperationForm,
    OperationsAdmin,
    one_commit,
    tell_of_new_jobs,
)
from django_durable.choices import UNDO, StepStatus
from django_durable.exceptions import DurableError
from django_durable.jobtypes import registry
from django_durable.models import Job

EDIT_PAYLOAD = "durable.edit_payload"
MAX_STEPS = 200


class SignalForm(OperationForm):
    """Ask for the name and the payload of a signal."""

    name = forms.CharField(label=_("Name"), max_length=255, strip=False)
    payload = PayloadText(label=_("Payload"), help_text=_("JSON; empty means none"))

    def prepare(self) -> None:
        """Offer the name that the job waits for."""
        self.fields["name"].initial = self.obj.waits_for or ""

    def perform(self, model_admin: OperationsAdmin) -> None:
        name = self.cleaned_data["name"]
        with one_commit():
            delivered = operations.send_signal(self.obj, name, self.cleaned_data["payload"])
            if delivered:
                record = gettext("Sent the signal “%(name)s”") % {"name": name}
                model_admin.log_change(self.request, self.obj, record)
        if delivered:
            model_admin.message_user(
                self.request, gettext("The signal was sent."), messages.SUCCESS
            )
        else:
            text = gettext("The job has ended meanwhile: the signal was not stored.")
            model_admin.message_user(self.request, text, messages.WARNING)


@contextmanager
def users_code(request: HttpRequest) -> Iterator[None]:
    """Say in the form what users' code raises, which makes the keys, as far as the user may see."""
    try:
        yield
    except DurableError:
        raise
    except Exception as error:
        raise DurableError(display.error(request, error)) from error


class CallForm(OperationForm):
    """Ask for the arguments of a new job, where the user may see and change them."""

    args = PayloadText(list, label=_("Arguments"), help_text=_("A JSON list"))
    kwargs = PayloadText(dict, label=_("Keyword arguments"), help_text=_("A JSON object"))

    def prepare(self) -> None:
        """Show the job's arguments, or leave the fields out."""
        user = self.request.user
        if user.has_perm(EDIT_PAYLOAD) and display.may_see_payload(self.request):
            for name in ("args", "kwargs"):
                self.fields[name].initial = getattr(self.obj, name)
                if self.is_dropped:
                    self.fields[name].help_text = _("Dropped as the job succeeded: write it again")
        else:
            del self.fields["args"], self.fields["kwargs"]

    @property
    def is_dropped(self) -> bool:
        """Tell whether the job's own arguments are gone."""
        return operations.has_dropped_payload(self.obj)

    def changed(self, name: str) -> Any:
        """Return what the user wrote in place of the job's own, None if nothing."""
        if name not in self.fields:
            return None
        written = self.cleaned_data[name]
        return written if self.is_dropped or written != getattr(self.obj, name) else None

    def tell(self, model_admin: OperationsAdmin, job: Job) -> None:
        """Link to the new job."""
        tell_of_new_jobs(model_admin, self.request, [job], gettext("Made the new job {}."))


class ForkForm(CallForm):
    """Ask from where the new job begins, and with which arguments."""

    from_step = forms.ChoiceField(
        label=_("Begin"), required=False, help_text=_("What was earned before it is copied.")
    )
    field_order = ("from_step",)

    def prepare(self) -> None:
        """Offer the steps that the job has recorded."""
        super().prepare()
        steps = self.obj.steps.exclude(status=StepStatus.PENDING).order_by("ordinal", "pk")
        names = list(dict.fromkeys(steps.values_list("name", flat=True)[:MAX_STEPS]))
        choices = [(name, gettext("at “%(step)s”") % {"step": name}) for name in names]
        field: Any = self.fields["from_step"]
        field.choices = [("", gettext("afresh")), *choices]

    def perform(self, model_admin: OperationsAdmin) -> None:
        with one_commit():
            job = operations.fork(
                self.obj,
                from_step=self.cleaned_data["from_step"] or None,
                args=self.changed("args"),
                kwargs=self.changed("kwargs"),
            )
            record = gettext("Forked as job %(job)s") % {"job": job.pk}
            model_admin.log_change(self.request, self.obj, record)
        self.tell(model_admin, job)


class EnqueueForm(CallForm):
    """Ask where and when a new job of the type runs, and with which arguments."""

    queue_name = forms.CharField(label=_("Queue"), max_length=100)
    priority = forms.IntegerField(label=_("Priority"), min_value=-100, max_value=100)
    delay = DurationText(
        label=_("Delay"), required=False, help_text=_("30s, 15m, 2h, …; empty means at once")
    )

    def prepare(self) -> None:
        """Begin with what the job has."""
        super().prepare()
        self.fields["queue_name"].initial = self.obj.queue_name
        self.fields["priority"].initial = self.obj.priority

    def perform(self, model_admin: OperationsAdmin) -> None:
        given = self.cleaned_data
        args = given["args"] if "args" in self.fields else self.obj.args
        kwargs = given["kwargs"] if "kwargs" in self.fields else self.obj.kwargs
        is_gone = self.is_dropped and "args" not in self.fields
        if is_gone or not isinstance(args, list) or not isinstance(kwargs, dict):
            raise TypeError(gettext("The arguments of this job can't be read."))
        call = registry.get(self.obj.name).using(
            queue_name=given["queue_name"],
            priority=given["priority"],
            run_after=given["delay"],
            max_attempts=self.obj.max_attempts,
            requires=self.obj.requires,
            metadata=self.obj.metadata,
        )
        with one_commit():
            with users_code(self.request):
                job = call.enqueue(*args, **kwargs)
            record = gettext("Enqueued again as job %(job)s") % {"job": job.pk}
            model_admin.log_change(self.request, self.obj, record)
        self.tell(model_admin, job)


def _is_own(job: Job) -> bool:
    """Tell whether the job was asked for by somebody: an undo job belongs to another one."""
    return UNDO not in job.metadata


SIGNAL = Operation(
    action="",
    slug="signal",
    permission="signal",
    label=_("Send signal"),
    title=_("Send a signal"),
    warning=_("The latest value of a name counts, also when the job does not wait for it yet."),
    button=_("Yes, send"),
    outlook=lambda job: gettext("has ended") if job.is_finished else gettext("gets the signal"),
    possible=lambda job: not job.is_finished,
    form=SignalForm,
)
FORK = Operation(
    action="",
    slug="fork",
    permission="fork",
    label=_("Fork"),
    title=_("Fork a job"),
    warning=_("A new job is made like this one, which stays as it is and keeps its key."),
    button=_("Yes, fork"),
    outlook=lambda job: gettext("a new job is made"),
    possible=_is_own,
    form=ForkForm,
)
ENQUEUE = Operation(
    action="",
    slug="enqueue",
    permission="enqueue",
    label=_("Enqueue again"),
    title=_("Enqueue a job again"),
    warning=_("A new job of the same type is made, which shares nothing with this one."),
    button=_("Yes, enqueue"),
    outlook=lambda job: gettext("a new job is made"),
    possible=lambda job: _is_own(job) and registry.find(job.name) is not None,
    form=EnqueueForm,
)
