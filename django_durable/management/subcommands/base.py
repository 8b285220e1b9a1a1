"""What the subcommands have in common: their form, the types of their flags, their errors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from argparse import ArgumentTypeError
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar
from uuid import UUID

from django.core.management.base import CommandError, CommandParser

from django_durable.jobtypes import is_storable
from django_durable.management.subcommands.output import Page

T = TypeVar("T")


@dataclass(frozen=True)
class Report:
    """Hold what a subcommand found or did, and the sentences on what it could not do."""

    document: Any
    problems: Sequence[str] = ()
    # What a person should know beside the document, said on stderr.
    notes: Sequence[str] = ()


class Subcommand(ABC):
    """Do one thing, then show it as JSON or to a person: both from one document."""

    name: ClassVar[str]
    help: ClassVar[str]

    def add_arguments(self, parser: CommandParser) -> None:  # noqa: B027 - some have none
        """Declare the flags."""

    @abstractmethod
    def run(self, options: dict[str, Any]) -> Report:
        """Do it; raises `CommandError` with a sentence when nothing could be done."""

    def without_database(self, sentence: str) -> Report:
        """Return what to report when the database is away; raises `CommandError` otherwise."""
        raise CommandError(sentence)

    @abstractmethod
    def show(self, document: Any, page: Page) -> None:
        """Write the document for a person."""


def wrong_usage(sentence: str) -> CommandError:
    """Return the error for flags that don't go together."""
    return CommandError(sentence, returncode=2)


def flag_type(parse: Callable[[str], T]) -> Callable[[str], T]:
    """Make a parser that raises `ValueError` with a sentence the type of a flag."""

    def convert(text: str) -> T:
        try:
            return parse(text)
        except ValueError as error:
            raise ArgumentTypeError(str(error)) from None

    return convert


def storable(text: str) -> str:
    """Return the text; raises `ValueError` for one that the database can't know."""
    if not is_storable(text):
        raise ValueError(f"{text[:50]!r} has characters that PostgreSQL can't store")
    return text


def job_id(text: str) -> UUID:
    """Return the id that a person wrote; raises `CommandError` with a sentence."""
    try:
        return UUID(text)
    except ValueError:
        raise CommandError(
            f"{text[:100]!r} is not the id of a job, which is a UUID: see `durable jobs`"
        ) from None


def several(items: Sequence[Any], one: str, many: str = "") -> str:
    """Return "1 job" or "7 jobs"."""
    return f"{len(items)} {one if len(items) == 1 else many or one + 's'}"
