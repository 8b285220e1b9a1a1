"""The subcommands that decide about queues: pause, resume and limit."""

from __future__ import annotations

from typing import Any, ClassVar

from django.core.management.base import CommandParser

from django_durable import inspection, operations
from django_durable.durations import parse_rate
from django_durable.jobtypes import UNSET, Unset, check_text
from django_durable.management.subcommands.base import Report, Subcommand, flag_type, wrong_usage
from django_durable.management.subcommands.listing import limits_text
from django_durable.management.subcommands.output import Page
from django_durable.models import Queue


class Switch(Subcommand):
    """Pause or resume queues, each in a transaction of its own."""

    paused: ClassVar[bool]

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the queues."""
        parser.add_argument("queues", metavar="QUEUE", nargs="+", help="the name of a queue")

    def run(self, options: dict[str, Any]) -> Report:
        """Do it; a name that nobody uses is done too, and told."""
        names: list[str] = list(dict.fromkeys(options["queues"]))
        for name in names:
            check_name(name)
        # Before a row names them.
        notes = inspection.unknown_queues(names)
        rows = [
            {
                "name": name,
                "paused": self.paused,
                "changed": operations.switch_queue(name, paused=self.paused),
            }
            for name in names
        ]
        return Report(rows, notes=notes)

    def show(self, document: Any, page: Page) -> None:
        """Write a line for each."""
        word = "paused" if self.paused else "resumed"
        for row in document:
            if row["changed"]:
                page.line(page.style.SUCCESS(f"{row['name']} is {word}."))
            else:
                page.line(
                    f"{row['name']} {'was paused already' if self.paused else 'was not paused'}."
                )


class Pause(Switch):
    """Let no more jobs of queues start."""

    name = "pause"
    help = "Let no more jobs of queues start; what runs finishes."
    paused = True


class Resume(Switch):
    """Let jobs of queues start again."""

    name = "resume"
    help = "Let jobs of paused queues start again."
    paused = False


class Limit(Subcommand):
    """Set limits of queues."""

    name = "limit"
    help = "Limit how many jobs of a queue run at once, or how many start in a time."

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the queues and the limits."""
        parser.add_argument("queues", metavar="QUEUE", nargs="+", help="the name of a queue")
        parser.add_argument(
            "--max-running",
            type=flag_type(_number),
            default=UNSET,
            metavar="N",
            help="at most so many of its jobs run at once, across all workers; or none",
        )
        parser.add_argument(
            "--rate-limit",
            type=flag_type(_rate),
            default=UNSET,
            metavar="RATE",
            help="at most so many attempts start in any window, such as 100/m (s, m, h or d); or"
            " none",
        )

    def run(self, options: dict[str, Any]) -> Report:
        """Set what is given, and tell all that holds now; a name that nobody uses is told, too."""
        limits = {
            name: options[name]
            for name in ("max_running", "rate_limit")
            if not isinstance(options[name], Unset)
        }
        if not limits:
            raise wrong_usage("say --max-running or --rate-limit, or both")
        names: list[str] = list(dict.fromkeys(options["queues"]))
        for name in names:
            check_name(name)
        # Before a row names them.
        notes = inspection.unknown_queues(names)
        for name in names:
            operations.limit_queue(name, **limits)
        rows = Queue.objects.filter(name__in=names).order_by("name")
        document = list(rows.values("name", "paused", "max_running", "rate_limit"))
        return Report(document, notes=notes)

    def show(self, document: Any, page: Page) -> None:
        """Write a line for each."""
        for row in document:
            page.line(f"{row['name']}: {limits_text(row) or 'no limit'}")


def _number(text: str) -> int | None:
    if text.lower() == "none":
        return None
    if not text.isascii() or not text.isdigit() or not int(text[:19]) < 2**31:
        raise ValueError(f"{text[:50]!r} is neither a whole number from 0 on nor none")
    return int(text)


def _rate(text: str) -> str | None:
    if text.lower() == "none":
        return None
    parse_rate(text)
    return text


def check_name(name: str) -> None:
    """Refuse what can't be the name of a queue."""
    try:
        check_text("a queue's name", name, 100)
    except ValueError as error:
        raise wrong_usage(str(error)) from None
