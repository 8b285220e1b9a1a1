"""The subcommand that sends a signal to a job."""

from __future__ import annotations

import json
from typing import Any

from django.core.management.base import CommandError, CommandParser

from django_durable.exceptions import DurableError
from django_durable.management.subcommands.base import Report, Subcommand, flag_type, job_id
from django_durable.management.subcommands.output import Page
from django_durable.models import Job


def payload(text: str) -> Any:
    """Read the JSON of a payload; raises `ValueError` with a sentence."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from None


class Signal(Subcommand):
    """Send a job a named value."""

    name = "signal"
    help = "Send a signal to a job, for its wait_for_signal."

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the job, the name and the payload."""
        parser.add_argument("id", metavar="ID", help="the id of the job")
        parser.add_argument("signal", metavar="NAME", help="the name of the signal")
        parser.add_argument(
            "--payload", type=flag_type(payload), default=None, help="its value, as JSON (null)"
        )

    def run(self, options: dict[str, Any]) -> Report:
        """Send it."""
        key = job_id(options["id"])
        job: Job | None = Job.objects.filter(pk=key).first()
        if job is None:
            raise CommandError(f"no job has the id {key}")
        try:
            delivered = job.signal(options["signal"], options["payload"])
        except (DurableError, Job.DoesNotExist) as error:
            raise CommandError(str(error)) from error
        return Report({"delivered": delivered, "id": job.pk})

    def show(self, document: Any, page: Page) -> None:
        """Say what became of it."""
        if document["delivered"]:
            page.line(page.style.SUCCESS(f"Sent to {document['id']}."))
        else:
            page.line(f"{document['id']} has ended: the signal was not stored.")
