"""The subcommand that shows one job."""

from __future__ import annotations

import json
from typing import Any

from django.core.management.base import CommandError, CommandParser

from django_durable import inspection
from django_durable.management.subcommands.base import Report, Subcommand, job_id
from django_durable.management.subcommands.listing import error_text, job_row
from django_durable.management.subcommands.output import (
    Page,
    moment,
    payload_entry,
    printable,
    shortened,
)
from django_durable.models import DeadLetter, Job, Step

# What a person sees of long texts and lists; the JSON form has all.
LONGEST_PAYLOAD = 2000
MOST_CHILDREN = 20


class Show(Subcommand):
    """Show one job."""

    name = "show"
    help = "Show one job: its arguments, result, attempts and what happened to it."

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the id."""
        parser.add_argument("id", metavar="ID", help="the id of the job")

    def run(self, options: dict[str, Any]) -> Report:
        """Read the job and what belongs to it."""
        key = job_id(options["id"])
        job: Any = inspection.with_errors(Job.objects.all()).filter(pk=key).first()
        if job is None:
            raise CommandError(f"no job has the id {key}")
        return Report({**job_row(job, job.blocked_on), **_details(job), **_company(job)})

    def show(self, document: Any, page: Page) -> None:
        """Write fields, payloads, attempts and the timeline."""
        page.fields(_summary_fields(document))
        page.title("Arguments")
        for key in ("args", "kwargs"):
            page.line(_payload_text(document, key))
        if document["status"] == Job.Status.SUCCESSFUL:
            page.title("Result")
            page.line(_payload_text(document, "result"))
        if document["children"]:
            page.title(f"Children, {len(document['children'])}")
            page.table(
                ["ID", "JOB TYPE", "STATUS"],
                [tuple(child.values()) for child in document["children"][:MOST_CHILDREN]],
            )
        page.title("Timeline")
        for entry in document["timeline"]:
            page.line(f"{moment(entry['at'])}  {shortened(entry['text'], 200)}")
        failed = document["attempts"]
        if failed and failed[-1]["traceback"]:
            page.title(f"Traceback of attempt {failed[-1]['number']}")
            for line in failed[-1]["traceback"].splitlines():
                page.line(printable(line))


def _details(job: Job) -> dict[str, Any]:
    return {
        "priority": job.priority,
        "requires": job.requires,
        "metadata": job.metadata,
        "options": job.options,
        "max_attempts": job.max_attempts,
        "rejections": job.rejections,
        "started_at": job.started_at,
        "kept_until": job.kept_until,
        "worker": job.worker,
        "lease_until": job.lease_until,
        "idempotency_key": job.idempotency_key,
        "concurrency_key": job.concurrency_key,
        "delivery_key": job.delivery_key,
        "cancel_requested_at": job.cancel_requested_at,
        "cancel_reason": job.cancel_reason,
        "progress": job.progress,
        "forked_from": job.forked_from,
        "parent": job.parent_id,
        "root": job.root_id,
        "depth": job.depth,
        **payload_entry("args", job.args),
        **payload_entry("kwargs", job.kwargs),
        **payload_entry("result", job.return_value),
    }


def _company(job: Job) -> dict[str, Any]:
    columns = (
        "number",
        "worker",
        "started_at",
        "finished_at",
        "outcome",
        "error_class",
        "message",
        "traceback",
    )
    return {
        "attempts": list(job.attempts.order_by("number").values(*columns)),
        "steps": [_step(step) for step in job.steps.order_by("ordinal", "pk")],
        "signals": [
            {
                "name": signal.name,
                "received_at": signal.received_at,
                **payload_entry("payload", signal.payload),
            }
            for signal in job.signals.order_by("received_at")
        ],
        "children": list(job.children.order_by("pk").values("id", "name", "status")),
        "dead_letter": _letter(job.dead_letter),
        "timeline": [vars(entry) for entry in inspection.timeline(job)],
    }


def _step(step: Step) -> dict[str, Any]:
    return {
        "kind": step.kind,
        "name": step.name,
        "ordinal": step.ordinal,
        "status": step.status,
        "error_class": step.error_class,
        "message": step.message,
        "started_at": step.started_at,
        "finished_at": step.finished_at,
        "wake_at": step.wake_at,
        "tries": step.tries,
        "child": step.child_id,
        "compensated": step.compensated,
        **payload_entry("value", step.value),
    }


def _letter(letter: DeadLetter | None) -> dict[str, Any] | None:
    if letter is None:
        return None
    return {
        "id": letter.pk,
        "reason": letter.reason,
        "error_class": letter.error_class,
        "message": letter.message,
        "traceback": letter.traceback,
        "died_at": letter.died_at,
        "attempt_count": letter.attempt_count,
        "replayed_as": letter.replayed_as_id,
        "replayed_at": letter.replayed_at,
        "replayed_by": letter.replayed_by,
    }


def _summary_fields(document: dict[str, Any]) -> dict[str, str]:
    limit = document["max_attempts"]
    fields = {
        "Job": str(document["id"]),
        "Job type": document["name"],
        "Queue": document["queue_name"],
        "Status": document["status"],
        "Blocked on": document["blocked_on"],
        "Priority": str(document["priority"]),
        "Attempt": f"{document['attempt']} of {'any number' if limit is None else limit}",
        "Worker": document["worker"] or "",
        "Idempotency key": document["idempotency_key"] or "",
        "Concurrency key": document["concurrency_key"] or "",
        "Requires": document["requires"] or "",
        "Metadata": json.dumps(document["metadata"]) if document["metadata"] else "",
        "Progress": json.dumps(document["progress"]) if document["progress"] else "",
        "Forked from": str(document["forked_from"] or ""),
        "Parent": str(document["parent"] or ""),
        "Error": error_text(document),
    }
    return {name: value for name, value in fields.items() if value}


def _payload_text(document: dict[str, Any], key: str) -> str:
    note = document.get(f"{key}_note")
    text = printable(note or json.dumps(document[key], ensure_ascii=False))
    if len(text) > LONGEST_PAYLOAD:
        text = f"{text[:LONGEST_PAYLOAD]} [... {len(text) - LONGEST_PAYLOAD} more; --json has all]"
    return text if key == "result" else f"{key:<6}  {text}"
