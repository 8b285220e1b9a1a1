"""The subcommands that decide about queues: pause, resume and limit."""

from __future__ import annotations

from typing import Any, ClassVar

from django.core.management.base import CommandParser

from django_durable import inspection, operations
from django_durable.jobtypes import check_text
from django_durable.management.subcommands.base import Report, Subcommand, wrong_usage
from django_durable.management.subcommands.output import Page


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
        known = {queue.name for queue in inspection.queue_counts(limit=1)}
        rows = [
            {
                "name": name,
                "paused": self.paused,
                "changed": operations.switch_queue(name, paused=self.paused),
            }
            for name in names
        ]
        notes = [
            f"No job and no job type of this project is in a queue {name!r}."
            for name in names
            if name not in known
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


def check_name(name: str) -> None:
    """Refuse what can't be the name of a queue."""
    try:
        check_text("a queue's name", name, 100)
    except ValueError as error:
        raise wrong_usage(str(error)) from None
