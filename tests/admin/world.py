"""Jobs in every state, and the addresses of their pages."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.models import LogEntry
from django.contrib.messages import get_messages
from django.http import HttpResponse
from django.test import Client
from django.urls import reverse

from django_durable import job
from django_durable.models import Job
from tests.by_hand import Hand, bear

HOUR = timedelta(hours=1)
SECRET = "the-secret-of-the-payload"
SCRIPT = "<script>alert('x')</script>"
ESCAPED = "&lt;script&gt;alert(&#x27;x&#x27;)&lt;/script&gt;"


class DeclinedError(Exception):
    """Be the error that jobs here die of."""


@job(name="shown.charge", queue_name="shown")
def charge(*args: Any, **kwargs: Any) -> None:
    """Be shown in the admin."""


@job(name=f"shown.{SCRIPT}")
def hostile(*args: Any, **kwargs: Any) -> None:
    """Have a name that must be escaped."""


def hand() -> Hand:
    return Hand(charge.name, hostile.name, worker="hand")


def dead(*args: Any, message: str = "declined", call: Any = charge, **kwargs: Any) -> Job:
    """Make a job that has died of its first error."""
    call.enqueue(*args, **kwargs)
    by = hand()
    return by.kill(by.take(), DeclinedError(message))


def running() -> Job:
    charge.enqueue()
    return Job.objects.get(pk=hand().take().id)


def successful(value: Any = None) -> Job:
    charge.enqueue()
    by = hand()
    return by.succeed(by.take(), value)


def delayed() -> Job:
    return charge.using(run_after=HOUR).enqueue()


def family() -> tuple[Job, Job]:
    """Make a running parent and its READY child."""
    charge.enqueue()
    claim = hand().take()
    child = bear(claim, charge)
    return Job.objects.get(pk=claim.id), Job.objects.get(pk=child)


def url(page: str, *args: Any, model: str = "job") -> str:
    return reverse(f"admin:durable_{model}_{page}", args=args)


def act(
    client: Client, action: str, *rows: Any, model: str = "job", query: str = "", **fields: Any
) -> HttpResponse:
    """Post the form of a list as the page does."""
    data = {"action": action, ACTION_CHECKBOX_NAME: [str(row.pk) for row in rows], **fields}
    return client.post(url("changelist", model=model) + query, data)


def told(response: HttpResponse) -> list[tuple[str, str]]:
    """Return the messages that the request left, each with its level."""
    return [(m.level_tag, str(m)) for m in get_messages(response.wsgi_request)]


def logged() -> list[tuple[str, str]]:
    """Return whose changes were recorded, and as what, oldest first."""
    entries = LogEntry.objects.order_by("pk")
    return [(entry.object_id, entry.get_change_message()) for entry in entries]
