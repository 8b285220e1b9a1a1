"""The subcommand that runs stored histories against today's code."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from django_durable.inspection import unknown_job_types
from django_durable.management.subcommands.base import Report, Subcommand, several
from django_durable.management.subcommands.filters import add_filters, filtered
from django_durable.management.subcommands.output import Page
from django_durable.models import Job
from django_durable.rehearsal import check_histories, with_history


class ReplayCheck(Subcommand):
    """Find what a deploy of changed workflows would break."""

    name = "replay-check"
    help = "Run stored workflow histories against today's code, read only; exit 1 on findings."

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the filters."""
        add_filters(parser)

    def run(self, options: dict[str, Any]) -> Report:
        """Check them all."""
        jobs = with_history(filtered(Job.objects.all(), options)).order_by("pk")
        checked = check_histories(jobs[: options["limit"]])
        findings = [vars(finding) for finding in checked.findings]
        histories = _histories(checked.count)
        problems = [f"{several(findings, 'finding')} in {histories}"] if findings else []
        # A pipeline that names them wrongly would check nothing, and pass.
        problems += unknown_job_types(options["name"] or [])
        notes = [] if problems else [f"{histories}, no findings"]
        notes += [
            f"{_histories(number)} left out: {why}" for why, number in checked.left_out.items()
        ]
        return Report(findings, problems, notes)

    def show(self, document: Any, page: Page) -> None:
        """Write a table."""
        if document:
            page.table(
                ["JOB", "JOB TYPE", "FINDING"],
                [(row["job"], row["name"], row["text"]) for row in document],
            )


def _histories(count: int) -> str:
    return "1 history" if count == 1 else f"{count} histories"
