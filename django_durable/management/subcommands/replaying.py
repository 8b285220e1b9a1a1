"""The subcommand that replays dead jobs."""

from __future__ import annotations

import getpass
import os
from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import Any

from django.core.exceptions import ObjectDoesNotExist
from django.core.management.base import CommandParser

from django_durable import operations
from django_durable.durations import Rate, parse_rate
from django_durable.exceptions import AlreadyReplayed, DurableError
from django_durable.management.subcommands.base import (
    Report,
    Subcommand,
    flag_type,
    job_id,
    several,
)
from django_durable.management.subcommands.filters import add_filters, check_selection, filtered
from django_durable.management.subcommands.output import Page
from django_durable.models import DeadLetter, Job

# The numbers of dead letters are of type bigint, and shorter than the digits of any UUID.
LONGEST_NUMBER = 18


class Replay(Subcommand):
    """Make new jobs of dead ones."""

    name = "replay"
    help = "Make a new job of each dead one, with its payload and its idempotency key."

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare ids, or filters, and how fast."""
        parser.add_argument(
            "ids", nargs="*", metavar="ID", help="the id of a dead job, or of a dead letter"
        )
        parser.add_argument(
            "--all",
            action="store_true",
            help="all dead jobs that pass the filters and have not been replayed",
        )
        parser.add_argument(
            "--rate",
            type=flag_type(parse_rate),
            help="spread the starts of the new jobs, such as 50/s",
        )
        parser.add_argument(
            "--dry-run", action="store_true", help="only list what would be replayed"
        )
        add_filters(parser)

    def run(self, options: dict[str, Any]) -> Report:
        """Replay one by one, each in a transaction of its own."""
        check_selection(options)
        problems: list[str] = []
        letters: Iterable[DeadLetter]
        letters = _matching(options) if options["all"] else _named(options["ids"], problems)
        rows: list[dict[str, Any]] = []
        notes: list[str] = []
        for letter in letters:
            try:
                rows.append(self._replay(letter, len(rows), options))
            except (AlreadyReplayed, ObjectDoesNotExist) as error:
                # Of --all it is enough that somebody else was quicker.
                if not options["all"]:
                    problems.append(str(error))
            except DurableError as error:
                # Its undo job is not done yet; the next --all finds it.
                (notes if options["all"] else problems).append(str(error))
        return Report(rows, problems, notes)

    def _replay(self, letter: DeadLetter, number: int, options: dict[str, Any]) -> dict[str, Any]:
        new = None
        if options["dry_run"]:
            operations.check_replay(letter)
        else:
            delay = number * _gap(options["rate"])
            new = operations.replay(letter, delay=delay, by=_operator()).pk
        return {
            "id": letter.job_id,
            "new_id": new,
            "dead_letter": letter.pk,
            "dry_run": options["dry_run"],
        }

    def show(self, document: Any, page: Page) -> None:
        """Write a table and the sum."""
        if document:
            page.table(["DEAD JOB", "NEW JOB"], [(r["id"], r["new_id"] or "-") for r in document])
        if any(row["dry_run"] for row in document):
            page.line(f"{several(document, 'job')} would be replayed.")
        else:
            page.line(page.style.SUCCESS(f"Replayed {several(document, 'job')}."))


def _matching(options: dict[str, Any]) -> Iterable[DeadLetter]:
    letters = DeadLetter.objects.filter(
        job__in=filtered(Job.objects.all(), options), replayed_at__isnull=True
    )
    # Read in one go, before the first replay: they leave the set as they are replayed.
    return list(letters.only("job_id").order_by("died_at", "pk")[: options["limit"]])


def _named(ids: list[str], problems: list[str]) -> Iterator[DeadLetter]:
    """Yield the dead letters meant by the ids, and add a sentence for each that has none."""
    wanted = [_parsed(text) for text in dict.fromkeys(ids)]
    for key in wanted:
        letter = DeadLetter.objects.filter(**key).first()
        if letter is None:
            problems.append(_why_none(key))
        elif letter.replayed_at is not None:
            new = letter.replayed_as_id or "a job that has been deleted"
            problems.append(f"{letter.job_id} has been replayed already, as {new}")
        else:
            yield letter


def _parsed(text: str) -> dict[str, Any]:
    if text.isascii() and text.isdigit() and len(text) <= LONGEST_NUMBER:
        return {"pk": int(text)}
    return {"job_id": job_id(text)}


def _why_none(key: dict[str, Any]) -> str:
    if "pk" in key:
        return f"there is no dead letter {key['pk']}"
    job = Job.objects.filter(pk=key["job_id"]).only("status").first()
    if job is None:
        return f"no job has the id {key['job_id']}"
    if job.status == Job.Status.DEAD:
        return f"the dead letter of {job.pk} has been deleted"
    return f"{job.pk} is {job.status}: only dead jobs can be replayed"


def _gap(rate: Rate | None) -> timedelta:
    return rate.window / rate.limit if rate is not None else timedelta(0)


def _operator() -> str:
    """Name who replays, for the record."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError, ImportError):
        # In a container the user may have no name.
        user = str(os.getuid())
    return f"{user} (manage.py durable)"
