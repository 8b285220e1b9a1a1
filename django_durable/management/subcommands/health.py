"""The subcommand that tells whether all is well, for monitors."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from django_durable import inspection
from django_durable.durations import parse_duration
from django_durable.management.subcommands.base import Report, Subcommand, flag_type
from django_durable.management.subcommands.output import Page


class Health(Subcommand):
    """Say what is wrong, if anything."""

    name = "health"
    help = "Tell whether all is well, with exit code 1 and what is wrong if not."

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare what is still well."""
        parser.add_argument(
            "--max-age",
            type=flag_type(parse_duration),
            metavar="DURATION",
            help="no job may wait longer than this for its start, such as 5m (no limit)",
        )
        parser.add_argument(
            "--min-workers",
            type=flag_type(_number),
            default=1,
            metavar="N",
            help="so many workers must be running (default: %(default)s)",
        )
        parser.add_argument(
            "--max-dead",
            type=flag_type(_number),
            metavar="N",
            help="so many dead letters may wait for somebody to replay them (no limit)",
        )

    def run(self, options: dict[str, Any]) -> Report:
        """Look."""
        flags = ("max_age", "min_workers", "max_dead")
        return _report(inspection.problems(**{name: options[name] for name in flags}))

    def without_database(self, sentence: str) -> Report:
        """Report that there is no database to look at."""
        return _report([sentence])

    def show(self, document: Any, page: Page) -> None:
        """Say that all is well; what is wrong goes to stderr."""
        if document["healthy"]:
            page.line(page.style.SUCCESS("All is well."))


def _report(problems: list[str]) -> Report:
    return Report({"healthy": not problems, "problems": problems}, problems=problems)


def _number(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not int(text[:19]) < 2**31:
        raise ValueError(f"{text[:50]!r} is not a whole number from 0 on")
    return int(text)
