"""The subcommand that deletes what is kept no longer, at once."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from django_durable import operations
from django_durable.management.subcommands.base import Report, Subcommand
from django_durable.management.subcommands.output import Page


class Prune(Subcommand):
    """Do now what the workers' sweeps would do by and by."""

    name = "prune"
    help = "Delete the jobs whose retention is over; workers do the same, a few at a time."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--dry-run", action="store_true", help="only count what would be deleted"
        )

    def run(self, options: dict[str, Any]) -> Report:
        """Sweep in batches, each of which is one transaction."""
        dry_run: bool = options["dry_run"]
        deleted = operations.count_gone() if dry_run else operations.prune()
        return Report({"deleted": deleted, "dry_run": dry_run})

    def show(self, document: Any, page: Page) -> None:
        """Write the sum."""
        number = document["deleted"]
        jobs = "1 job" if number == 1 else f"{number} jobs"
        if document["dry_run"]:
            page.line(f"{jobs} would be deleted.")
        else:
            page.line(page.style.SUCCESS(f"Deleted {jobs}."))
