"""Pieces of HTML that the pages share; every text of a job goes through `format_html`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.contrib.admin.utils import quote
from django.db.models import Model
from django.http import HttpRequest
from django.urls import reverse
from django.utils.formats import date_format
from django.utils.html import format_html
from django.utils.http import urlencode
from django.utils.timezone import localtime
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_durable.choices import JobStatus
from django_durable.errortext import ErrorText
from django_durable.exceptions import UnknownJob

if TYPE_CHECKING:
    from datetime import datetime

    from django.contrib.admin import AdminSite

    from django_durable.models import Job

EMPTY = "-"
VIEW_PAYLOAD = "durable.view_payload"
HIDDEN = _("hidden: needs permission durable.view_payload")

Display = Callable[[Any], Any]


def may_see_payload(request: HttpRequest) -> bool:
    """Tell whether the user may see arguments, results, error messages and tracebacks."""
    return request.user.has_perm(VIEW_PAYLOAD)


def hidden(name: str, label: Any) -> Display:
    """Return the column that stands where `name` would be, for users who may not see it."""

    @admin.display(description=label)
    def column(obj: Any) -> Any:
        return HIDDEN

    column.__name__ = name
    return column


def error(request: HttpRequest, error: Exception) -> str:
    """Return what the user may see of an error that users' code may have raised."""
    text = ErrorText.from_exception(error)
    if may_see_payload(request) or isinstance(error, UnknownJob):
        return f"{text.error_class}: {text.message}"
    return text.error_class


def moment(field: str, label: Any) -> Display:
    """Return the column of a time, to the second, with the exact instant for machines."""

    @admin.display(description=label)
    def column(obj: Any) -> str:
        return time(getattr(obj, field))

    column.__name__ = field
    return column


def time(at: datetime | None) -> str:
    """Return an instant in the current time zone, to the second."""
    if at is None:
        return EMPTY
    local = localtime(at)
    return format_html(
        '<time datetime="{}"><span class="durable-nowrap">{}</span>'
        ' <span class="durable-nowrap">{}</span></time>',
        at.isoformat(),
        date_format(local, "Y-m-d"),
        date_format(local, "H:i:s"),
    )


def name_and_id(name: str, pk: object) -> str:
    """Return the two as one cell of a list."""
    return format_html('{}<br><span class="durable-id">{}</span>', name, pk)


def shortened(text: str, limit: int, *, tail: bool = False) -> tuple[str, bool]:
    """Return at most `limit` characters, the last ones with `tail`, and whether that is less."""
    if len(text) <= limit:
        return text, False
    return (text[-limit:] if tail else text[:limit]), True


def one_line(text: str, limit: int = 100) -> str:
    """Return the beginning of a text as one line for a table."""
    shown, cut = shortened(" ".join(text[: 4 * limit].split()), limit)
    return f"{shown}…" if cut or len(text) > 4 * limit else shown


def block(text: str) -> str:
    """Return a text whose lines and spaces count; the keyboard can scroll it."""
    return format_html('<pre class="durable-text" tabindex="0">{}</pre>', text)


def page_url(site: AdminSite, model: type[Model], page: str, *args: Any) -> str:
    """Return the address of a page of a model on this site, whatever the site is called."""
    name = f"admin:{model._meta.app_label}_{model._meta.model_name}_{page}"
    return reverse(name, args=[quote(arg) for arg in args], current_app=site.name)


def list_url(site: AdminSite, model: type[Model], **filters: Any) -> str:
    """Return the address of the list of a model with filters."""
    return f"{page_url(site, model, 'changelist')}?{urlencode(filters)}"


def link(site: AdminSite, model: type[Model], pk: Any, text: object = None) -> str:
    """Return a link to a row's page, or its text where the site does not have the model."""
    shown = str(pk if text is None else text)
    if not site.is_registered(model):
        return shown
    return format_html('<a href="{}">{}</a>', page_url(site, model, "change", pk), shown)


def status(job: Job, now: datetime) -> str:
    """Return the status in words, with what it means for people where that says more."""
    words = str(JobStatus(job.status).label)
    detail = ""
    if job.status == JobStatus.READY and job.due_at is not None and job.due_at > now:
        detail = gettext("retrying") if job.attempt else gettext("scheduled")
    elif job.status == JobStatus.RUNNING and job.cancel_requested_at is not None:
        detail = gettext("asked to stop")
    return format_html(
        '<span class="durable-status durable-{}">{}</span>',
        job.status.lower(),
        f"{words} ({detail})" if detail else words,
    )
