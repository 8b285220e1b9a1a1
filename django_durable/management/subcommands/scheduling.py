"""The subcommand that lists schedules."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django_durable.durations import format_duration
from django_durable.management.subcommands.base import Report, Subcommand
from django_durable.management.subcommands.output import Page, moment, shortened
from django_durable.models import Schedule


class Schedules(Subcommand):
    """Show the schedules and when they run."""

    name = "schedules"
    help = "List the schedules: what they run, when next, and which are off or broken."

    def run(self, options: dict[str, Any]) -> Report:
        """Read them, in one query."""
        rows = Schedule.objects.defer("args", "kwargs").order_by("job_name", "name")
        return Report([_schedule(row) for row in rows.iterator(chunk_size=2000)])

    def show(self, document: Any, page: Page) -> None:
        """Write a table."""
        if not document:
            page.line("There is no schedule.")
            return
        page.table(
            ["JOB TYPE", "NAME", "RULE", "STATE", "NEXT RUN", "LAST RUN", ""],
            [
                (
                    row["job_name"],
                    row["name"],
                    _rule(row),
                    row["state"],
                    moment(row["next_run_at"]) if row["state"] == "on" else "-",
                    moment(row["last_run_at"]),
                    shortened(row["broken"], 100),
                )
                for row in document
            ],
        )


def _schedule(row: Schedule) -> dict[str, Any]:
    return {
        "id": row.pk,
        "job_name": row.job_name,
        "name": row.name,
        "cron": row.cron or None,
        "every": _seconds(row.every),
        "timezone": row.timezone,
        "enabled": row.enabled,
        "state": "broken" if row.broken else "on" if row.enabled else "off",
        "broken": row.broken,
        "declared": row.declared,
        "starts_at": row.starts_at,
        "until": row.until,
        "catch_up": row.catch_up,
        "overlap": row.overlap,
        "jitter": _seconds(row.jitter),
        "next_run_at": row.next_run_at,
        "last_run_at": row.last_run_at,
        "skipped": row.skipped,
        "last_skipped_at": row.last_skipped_at,
    }


def _seconds(duration: timedelta | None) -> float | None:
    return None if duration is None else duration.total_seconds()


def _rule(row: dict[str, Any]) -> str:
    if row["cron"]:
        return f"{row['cron']} ({row['timezone']})"
    return f"every {format_duration(timedelta(seconds=row['every'] or 0))}"
