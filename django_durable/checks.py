"""System checks: what is wrong with the settings or the server, each with its remedy.

| id | problem |
|---|---|
| `durable.E001` | `DURABLE_DATABASE` is no alias of `DATABASES` |
| `durable.E002` | `DURABLE_LEASE` is no timedelta, or out of range |
| `durable.E003` | `DURABLE_POLL_INTERVAL` is no timedelta, or out of range |
| `durable.E004` | `DURABLE_MAX_DEPTH` is no whole number, or out of range |
| `durable.E005` | `DURABLE_MAX_PAYLOAD` is no whole number, or out of range |
| `durable.E006` | `DURABLE_KEEP_COMPLETED` is neither None nor a timedelta in range |
| `durable.E007` | `DURABLE_KEEP_DEAD` is neither None nor a timedelta in range |
| `durable.E008` | `DURABLE_DROP_COMPLETED_PAYLOADS` is no bool |
| `durable.E009` | `DURABLE_FAIR_SHARE` is neither None nor a whole number from 1 on |
| `durable.E010` | `DURABLE_DEFAULTS` is no dict, or has an unknown option or one out of range |
| `durable.E011` | `DURABLE_NOTIFY` is no bool |
| `durable.E012` | `DURABLE_LISTEN_DATABASE` is neither None nor an alias of `DATABASES` |
| `durable.E013` | `USE_TZ` is False |
| `durable.E014` | one of the databases is not PostgreSQL |
| `durable.E015` | Django uses psycopg2 |
| `durable.E016` | the server is too old (asked only when a database is named, as `migrate` does) |
| `durable.W001` | a `DURABLE_` setting that does not exist |
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

from django.conf import settings
from django.core.checks import CheckMessage, Error, Tags, register
from django.core.checks import Warning as CheckWarning
from django.db import NotSupportedError, OperationalError, connections

from django_durable.conf import SETTINGS, conf
from django_durable.jobtypes import OPTION_NAMES, check_options

TAG = "durable"
OLDEST_SERVER = 14
LONGEST_KEEP = timedelta(days=36500)
LARGEST_PAYLOAD = 256 * 1024 * 1024


def register_checks() -> None:
    """Register every check of the package; called once, when the app is ready."""
    register(check_settings, TAG)
    register(check_engines, TAG)
    register(check_server, TAG, Tags.database)


class Rule(NamedTuple):
    """Say which values of a setting are right, as a test and in words."""

    id: str
    setting: str
    holds: Callable[[Any], bool]
    wanted: str


def _duration(least: timedelta, most: timedelta) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, timedelta) and least <= value <= most


def _whole(least: int, most: int) -> Callable[[Any], bool]:
    return lambda value: type(value) is int and least <= value <= most


def _optional(holds: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or holds(value)


def _is_bool(value: object) -> bool:
    return isinstance(value, bool)


def _is_alias(value: object) -> bool:
    return isinstance(value, str) and value in connections.settings


RULES = (
    Rule("E001", "DURABLE_DATABASE", _is_alias, "an alias of DATABASES"),
    Rule(
        "E002",
        "DURABLE_LEASE",
        _duration(timedelta(seconds=1), timedelta(days=1)),
        "a timedelta from one second to one day",
    ),
    Rule(
        "E003",
        "DURABLE_POLL_INTERVAL",
        _duration(timedelta(milliseconds=10), timedelta(hours=1)),
        "a timedelta from ten milliseconds to one hour",
    ),
    Rule("E004", "DURABLE_MAX_DEPTH", _whole(0, 1000), "a whole number from 0 to 1000"),
    Rule(
        "E005",
        "DURABLE_MAX_PAYLOAD",
        _whole(1, LARGEST_PAYLOAD),
        f"a whole number of bytes from 1 to {LARGEST_PAYLOAD} (256 MiB)",
    ),
    Rule(
        "E006",
        "DURABLE_KEEP_COMPLETED",
        _optional(_duration(timedelta(0), LONGEST_KEEP)),
        "a timedelta, timedelta(0) to delete at once, or None to keep for ever",
    ),
    Rule(
        "E007",
        "DURABLE_KEEP_DEAD",
        _optional(_duration(timedelta.resolution, LONGEST_KEEP)),
        "a timedelta longer than nothing, or None to keep for ever",
    ),
    Rule("E008", "DURABLE_DROP_COMPLETED_PAYLOADS", _is_bool, "True or False"),
    Rule(
        "E009",
        "DURABLE_FAIR_SHARE",
        _optional(_whole(1, 1_000_000)),
        "a whole number from 1 to 1,000,000, or None to go by priority alone",
    ),
    Rule("E011", "DURABLE_NOTIFY", _is_bool, "True or False"),
    Rule("E012", "DURABLE_LISTEN_DATABASE", _optional(_is_alias), "an alias of DATABASES or None"),
)


def check_settings(app_configs: Sequence[Any] | None, **kwargs: Any) -> list[CheckMessage]:
    """Report the settings that are wrong by themselves."""
    broken = [rule for rule in RULES if not rule.holds(_value(rule.setting))]
    return [
        *map(_broken_rule, broken),
        *_defaults_problems(),
        *_time_zone_problems(),
        *_unknown_settings(),
    ]


def _value(name: str) -> Any:
    return getattr(settings, name, SETTINGS[name].default)


def _broken_rule(rule: Rule) -> CheckMessage:
    return Error(
        f"{rule.setting} is {_value(rule.setting)!r:.200}.",
        hint=f"Make it {rule.wanted}, or remove it for {SETTINGS[rule.setting].default!r}.",
        id=f"durable.{rule.id}",
    )


def _defaults_problems() -> list[CheckMessage]:
    defaults: object = conf.defaults
    if not isinstance(defaults, Mapping):
        hint = "Make it a dict of options of @job, such as {'max_attempts': 5}."
        return [Error("DURABLE_DEFAULTS is no dict.", hint=hint, id="durable.E010")]
    problems: list[CheckMessage] = []
    for name, value in defaults.items():
        if name not in OPTION_NAMES:
            problem, hint = f"has an unknown option {name!r:.100}", _meant(name, OPTION_NAMES)
        else:
            try:
                check_options({name: value})
                continue
            except (TypeError, ValueError) as error:
                problem = f"has an option out of range: {error}"
                hint = "Give it a value that @job takes, or remove it."
        problems.append(Error(f"DURABLE_DEFAULTS {problem}.", hint=hint, id="durable.E010"))
    return problems


def _time_zone_problems() -> list[CheckMessage]:
    if settings.USE_TZ:
        return []
    hint = "Set USE_TZ = True: leases, delays and schedules are moments, not readings of a clock."
    return [Error("USE_TZ is False.", hint=hint, id="durable.E013")]


def _unknown_settings() -> list[CheckMessage]:
    unknown = sorted(n for n in dir(settings) if n.startswith("DURABLE_") and n not in SETTINGS)
    return [
        CheckWarning(f"There is no setting {name}.", hint=_meant(name, SETTINGS), id="durable.W001")
        for name in unknown
    ]


def _meant(name: object, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(str(name), known, n=1, cutoff=0.8)
    return f"Did you mean {near[0]}?" if near else f"There is only {', '.join(sorted(known))}."


def check_engines(app_configs: Sequence[Any] | None, **kwargs: Any) -> list[CheckMessage]:
    """Report databases that can't keep jobs, without connecting."""
    problems: list[CheckMessage] = []
    for alias in _aliases():
        if connections[alias].vendor != "postgresql":
            hint = (
                "Let DURABLE_DATABASE and DURABLE_LISTEN_DATABASE name databases whose ENGINE is"
                " django.db.backends.postgresql."
            )
            what = f"The database {alias!r} of django_durable is not PostgreSQL."
            problems.append(Error(what, hint=hint, id="durable.E014"))
        elif not _has_psycopg3():
            hint = "Install it: pip install 'psycopg[binary]>=3.2'. Django prefers it to psycopg2."
            what = (
                f"The database {alias!r} of django_durable is reached with psycopg2, not psycopg 3."
            )
            problems.append(Error(what, hint=hint, id="durable.E015"))
    return problems


def _aliases() -> list[str]:
    return list(dict.fromkeys(filter(_is_alias, (conf.database, conf.listen_database or ""))))


def _has_psycopg3() -> bool:
    from django.db.backends.postgresql import psycopg_any

    return bool(psycopg_any.is_psycopg3)


def check_server(
    app_configs: Sequence[Any] | None, databases: Sequence[str] | None = None, **kwargs: Any
) -> list[CheckMessage]:
    """Report a PostgreSQL that is too old, if the database is among the named ones.

    A server that can't be reached is no finding: whoever needs it says so.
    """
    alias = conf.database
    if alias not in (databases or ()) or alias not in _aliases():
        return []
    connection: Any = connections[alias]
    if connection.vendor != "postgresql":
        return []
    try:
        return _age_problems(alias, connection.pg_version)
    except NotSupportedError as error:  # Django's own limit is met first
        return [_too_old(alias, str(error))]
    except OperationalError:
        return []


def _age_problems(alias: str, version: int) -> list[CheckMessage]:
    major = version // 10_000
    return [] if major >= OLDEST_SERVER else [_too_old(alias, f"It is PostgreSQL {major}.")]


def _too_old(alias: str, why: str) -> CheckMessage:
    hint = f"Move to PostgreSQL {OLDEST_SERVER} or newer (Django may ask for more)."
    return Error(
        f"The server of the database {alias!r} is too old. {why}", hint=hint, id="durable.E016"
    )
