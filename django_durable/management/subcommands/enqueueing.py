"""The subcommand that makes jobs."""

from __future__ import annotations

import argparse
import difflib
import json
from collections.abc import Callable
from dataclasses import fields
from datetime import datetime, timedelta
from typing import Any, NoReturn

from django.core.management.base import CommandError, CommandParser
from django.utils import timezone

from django_durable.backoff import Backoff
from django_durable.choices import OnDuplicate, Priority
from django_durable.durations import parse_duration
from django_durable.exceptions import DurableError
from django_durable.jobtypes import CALL_OPTIONS, JobType, registry
from django_durable.management.subcommands.base import (
    Report,
    Subcommand,
    flag_type,
    wrong_usage,
)
from django_durable.management.subcommands.output import Page


class Enqueue(Subcommand):
    """Store one job."""

    name = "enqueue"
    help = "Store a job of a job type that this project defines."

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the name, the arguments and the options of `using`."""
        parser.add_argument("job_name", metavar="NAME", help="the name of the job type")
        parser.add_argument(
            "--args",
            dest="job_args",
            type=flag_type(_json(list, "a list, such as '[42]'")),
            default=[],
            help="the positional arguments, as a JSON list",
        )
        parser.add_argument(
            "--kwargs",
            dest="job_kwargs",
            type=flag_type(_json(dict, "an object, such as '{\"order\": 42}'")),
            default={},
            help="the keyword arguments, as a JSON object",
        )
        group = parser.add_argument_group("options of the job", "as `using` takes them")
        for flag, parse, help_text in _OPTIONS:
            # Absent unless given: None is a value of its own.
            group.add_argument(
                flag, type=flag_type(parse), default=argparse.SUPPRESS, help=help_text
            )
        group.add_argument(
            "--metadata",
            action="append",
            type=flag_type(_pair),
            metavar="KEY=VALUE",
            default=argparse.SUPPRESS,
            help="a text to keep with the job (may be repeated)",
        )

    def run(self, options: dict[str, Any]) -> Report:
        """Store the job."""
        job_type = _job_type(options["job_name"])
        using = {name: options[name] for name in CALL_OPTIONS & options.keys()}
        if "metadata" in using:
            using["metadata"] = dict(using["metadata"])
        try:
            call = job_type.using(**using)
        except ValueError as error:
            raise wrong_usage(str(error)) from None
        try:
            job = call.enqueue(*options["job_args"], **options["job_kwargs"])
        except (TypeError, ValueError, DurableError) as error:
            raise CommandError(str(error)) from error
        return Report({"id": job.pk, "created": job.created, "status": job.status})

    def show(self, document: Any, page: Page) -> None:
        """Write the id."""
        if document["created"]:
            page.line(page.style.SUCCESS(f"Enqueued {document['id']}."))
        else:
            page.line(f"{document['id']} has the key already; it is {document['status']}.")


def _job_type(name: str) -> JobType:
    found = registry.find(name)
    if found is not None:
        return found
    near = difflib.get_close_matches(name, registry.names(), n=3, cutoff=0.5)
    # A forgotten path is more likely than a misspelt one.
    near += [known for known in registry.names() if known.endswith(f".{name}")]
    hint = f"; near it: {', '.join(dict.fromkeys(near))}" if near else ""
    raise CommandError(f"no job type is called {name!r}{hint}")


def _json(kind: type, form: str) -> Callable[[str], Any]:
    def parse(text: str) -> Any:
        try:
            value = json.loads(text, parse_constant=_refuse)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"not JSON: {error}") from None
        if not isinstance(value, kind):
            raise ValueError(f"must be {form}")
        return value

    return parse


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _priority(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return Priority[text.upper()]
    except KeyError:
        names = ", ".join(member.name for member in Priority)
        raise ValueError(f"{text!r} is neither a whole number nor one of {names}") from None


def _run_after(text: str) -> datetime | timedelta:
    try:
        return parse_duration(text)
    except ValueError:
        pass
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"{text!r} is neither a duration, such as 5m, nor a moment, such as 2030-01-31T09:00"
        ) from None
    return timezone.make_aware(moment) if timezone.is_naive(moment) else moment


def _or_none(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    return lambda text: None if text.lower() == "none" else parse(text)


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{text!r} is neither a whole number nor none") from None


def _backoff(text: str) -> Backoff:
    given: dict[str, Any] = {}
    for part in text.split(","):
        name, value = _pair(part.strip())
        if name in ("initial", "maximum"):
            given[name] = parse_duration(value)
        elif name in ("factor", "jitter"):
            given[name] = float(value)
        else:
            known = ", ".join(field.name for field in fields(Backoff))
            raise ValueError(f"{name!r} is not a part of a backoff: {known}")
    return Backoff(**given)


def _pair(text: str) -> tuple[str, str]:
    key, found, value = text.partition("=")
    if not found or not key:
        raise ValueError(f"{text!r} is not KEY=VALUE")
    return key, value


def _on_duplicate(text: str) -> OnDuplicate:
    try:
        return OnDuplicate(text.lower().replace("-", "_"))
    except ValueError:
        names = ", ".join(mode.value for mode in OnDuplicate)
        raise ValueError(f"{text!r} is not one of {names}") from None


_OPTIONS: tuple[tuple[str, Callable[[str], Any], str], ...] = (
    ("--queue-name", str, "another queue than the job type's"),
    ("--priority", _priority, "-100 to 100, or low, normal, high, critical"),
    ("--run-after", _run_after, "a duration, such as 5m, or a moment in ISO 8601"),
    ("--max-attempts", _or_none(_number), "a number, or none for no limit"),
    ("--backoff", _backoff, "such as initial=2s,factor=2,maximum=1h,jitter=0.1"),
    ("--timeout", _or_none(parse_duration), "a duration, or none for no limit"),
    ("--idempotency-key", str, "a text that only one job of this type may have"),
    ("--on-duplicate", _on_duplicate, "what to do when one has it already"),
    ("--concurrency-key", str, "jobs with one key wait for each other"),
    ("--requires", str, "a capability that the worker must have"),
)
