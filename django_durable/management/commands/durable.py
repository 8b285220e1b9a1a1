"""`manage.py durable`: look at jobs and workers, and act on them."""

from __future__ import annotations

import argparse
import os
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import ProgrammingError

from django_durable import store
from django_durable.discovery import autodiscover
from django_durable.management.subcommands import SUBCOMMANDS, Report, Subcommand
from django_durable.management.subcommands.output import Page, as_json


class Command(BaseCommand):
    """Hand over to the subcommand; show what it reports."""

    help = "Look at jobs and workers, and act on them."

    def add_arguments(self, parser: CommandParser) -> None:
        subparsers = parser.add_subparsers(
            dest="subcommand", required=True, metavar="SUBCOMMAND", title="subcommands"
        )
        for name, subcommand in SUBCOMMANDS.items():
            subparser = subparsers.add_parser(
                name, help=subcommand.help, description=subcommand.help
            )
            subparser.add_argument(
                "--json", action="store_true", help="write one JSON document on stdout"
            )
            subcommand.add_arguments(subparser)
            _add_common_flags(subparser)

    def execute(self, *args: Any, **options: Any) -> Any:
        # The common wish of people who want no colours anywhere, which Django does not know.
        if os.environ.get("NO_COLOR") and not options["force_color"]:
            options["no_color"] = True
        try:
            # System checks may be the first to need the database.
            return super().execute(*args, **options)
        except ProgrammingError as error:
            if not _is_missing_table(error):
                raise
            return self._give_up(options, "a table is missing: run `manage.py migrate`", error)
        except store.OUTAGE as error:
            reason = str(error).strip().partition("\n")[0]
            return self._give_up(options, f"the database does not answer: {reason}", error)

    def handle(self, *args: Any, **options: Any) -> None:
        autodiscover()
        subcommand = SUBCOMMANDS[options["subcommand"]]
        self._write(subcommand, subcommand.run(options), options)

    def _give_up(self, options: dict[str, Any], sentence: str, error: Exception) -> None:
        subcommand = SUBCOMMANDS[options["subcommand"]]
        try:
            self._write(subcommand, subcommand.without_database(sentence), options)
        except CommandError as told:
            raise told from error

    def _write(self, subcommand: Subcommand, report: Report, options: dict[str, Any]) -> None:
        if options["json"]:
            self.stdout.write(as_json(report.document))
        else:
            subcommand.show(report.document, Page(self.stdout, self.style))
        for note in report.notes:
            self.stderr.write(self.style.WARNING(note), lambda text: text)
        if report.problems:
            raise CommandError("\n".join(report.problems))


def _is_missing_table(error: ProgrammingError) -> bool:
    return getattr(error.__cause__, "sqlstate", None) in ("42P01", "42703")


def _add_common_flags(parser: argparse.ArgumentParser) -> None:
    """Accept Django's flags after the subcommand too, where people write them."""
    group = parser.add_argument_group("flags of every command")
    suppress = argparse.SUPPRESS
    for flag in ("--no-color", "--force-color", "--traceback", "--skip-checks"):
        group.add_argument(flag, action="store_true", default=suppress, help=suppress)
    for flag in ("--settings", "--pythonpath"):
        group.add_argument(flag, default=suppress, help=suppress)
    group.add_argument(
        "-v", "--verbosity", type=int, choices=[0, 1, 2, 3], default=suppress, help=suppress
    )
