"""The subcommand that cancels jobs."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.core.management.base import CommandParser

from django_durable import operations
from django_durable.choices import FINISHED, LIVE, JobStatus
from django_durable.management.subcommands.base import (
    Report,
    Subcommand,
    flag_type,
    job_id,
    several,
    storable,
)
from django_durable.management.subcommands.filters import add_filters, check_selection, filtered
from django_durable.management.subcommands.output import Page
from django_durable.models import Job


class Cancel(Subcommand):
    """Cancel jobs, each with its unfinished descendants."""

    name = "cancel"
    help = "Cancel jobs: waiting ones at once, running ones by request."

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare ids, or filters, and how."""
        parser.add_argument("ids", nargs="*", metavar="ID", help="the id of a job")
        parser.add_argument(
            "--all", action="store_true", help="all unfinished jobs that pass the filters"
        )
        parser.add_argument(
            "--reason",
            type=flag_type(storable),
            default="",
            help="what job.cancel_reason will say",
        )
        parser.add_argument(
            "--no-tree",
            action="store_false",
            dest="tree",
            help="leave the children of these jobs alone",
        )
        parser.add_argument(
            "--dry-run", action="store_true", help="only list what would be cancelled, and how"
        )
        add_filters(parser)

    def run(self, options: dict[str, Any]) -> Report:
        """Cancel in batches, each of which is one transaction."""
        check_selection(options)
        problems = []
        if options["all"]:
            chosen = _matching(options)
        else:
            named = list(dict.fromkeys(job_id(text) for text in options["ids"]))
            chosen = _existing(named)
            problems = [f"no job has the id {key}" for key in named if key not in chosen]
        if options["dry_run"]:
            outcomes = {key: _foreseen(status) for key, status in chosen.items()}
        else:
            outcomes = _cancel(list(chosen), options["reason"], options["tree"])
        return Report(
            [
                {"id": key, "outcome": outcomes[key], "dry_run": options["dry_run"]}
                for key in chosen
            ],
            problems,
        )

    def show(self, document: Any, page: Page) -> None:
        """Write a table and the sum."""
        if document:
            page.table(["ID", "OUTCOME"], [(row["id"], row["outcome"]) for row in document])
        changed = [row for row in document if row["outcome"] != "finished"]
        if any(row["dry_run"] for row in document):
            page.line(f"{several(changed, 'job')} would be cancelled.")
        else:
            page.line(page.style.SUCCESS(f"Cancelled {several(changed, 'job')}."))


def _matching(options: dict[str, Any]) -> dict[UUID, str]:
    jobs = filtered(Job.objects.all(), options)
    if not options["status"]:
        jobs = jobs.filter(status__in=LIVE)
    return dict(jobs.order_by("pk").values_list("pk", "status")[: options["limit"]])


def _existing(named: list[UUID]) -> dict[UUID, str]:
    found = dict(Job.objects.filter(pk__in=named).values_list("pk", "status"))
    return {key: found[key] for key in named if key in found}


def _foreseen(status: str) -> str:
    if status in FINISHED:
        return "finished"
    return "requested" if status == JobStatus.RUNNING else "cancelled"


def _cancel(ids: list[UUID], reason: str, tree: bool) -> dict[UUID, str]:
    outcomes = dict.fromkeys(ids, "finished")
    for start in range(0, len(ids), operations.BATCH):
        batch = ids[start : start + operations.BATCH]
        outcomes.update(operations.cancel_ids(batch, reason=reason, tree=tree))
    return outcomes
