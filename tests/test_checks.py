"""System checks: each wrong setting has its id, what is wrong and what to do."""

import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core import checks as django_checks
from django.db import connections
from django.db.backends.base import base
from django.db.backends.postgresql import psycopg_any
from django.db.utils import ConnectionHandler
from django.test import override_settings

from django_durable import checks
from django_durable.backoff import Backoff
from django_durable.checks import check_engines, check_server, check_settings
from tests.contract.committed import database_url

CHECKOUT = Path(__file__).parent.parent
SECOND = timedelta(seconds=1)


def findings(**settings: Any) -> list[django_checks.CheckMessage]:
    with override_settings(**settings):
        return check_settings(None)


def only(messages: list[django_checks.CheckMessage]) -> django_checks.CheckMessage:
    (message,) = messages
    assert message.hint
    assert str(message.msg).endswith(".")
    return message


WRONG: list[tuple[str, str, Any]] = [
    ("E001", "DURABLE_DATABASE", "nowhere"),
    ("E001", "DURABLE_DATABASE", None),
    ("E002", "DURABLE_LEASE", 30),
    ("E002", "DURABLE_LEASE", SECOND / 2),
    ("E002", "DURABLE_LEASE", timedelta(days=2)),
    ("E003", "DURABLE_POLL_INTERVAL", 1.0),
    ("E003", "DURABLE_POLL_INTERVAL", timedelta(0)),
    ("E003", "DURABLE_POLL_INTERVAL", timedelta(days=1)),
    ("E004", "DURABLE_MAX_DEPTH", -1),
    ("E004", "DURABLE_MAX_DEPTH", True),
    ("E004", "DURABLE_MAX_DEPTH", 40_000),
    ("E005", "DURABLE_MAX_PAYLOAD", 0),
    ("E005", "DURABLE_MAX_PAYLOAD", "1 MB"),
    ("E005", "DURABLE_MAX_PAYLOAD", 2**30),
    ("E006", "DURABLE_KEEP_COMPLETED", 7),
    ("E006", "DURABLE_KEEP_COMPLETED", -SECOND),
    ("E007", "DURABLE_KEEP_DEAD", timedelta(0)),
    ("E007", "DURABLE_KEEP_DEAD", timedelta.max),
    ("E008", "DURABLE_DROP_COMPLETED_PAYLOADS", 1),
    ("E009", "DURABLE_FAIR_SHARE", 0),
    ("E009", "DURABLE_FAIR_SHARE", False),
    ("E010", "DURABLE_DEFAULTS", ["max_attempts"]),
    ("E010", "DURABLE_DEFAULTS", {"max_atempts": 5}),
    ("E010", "DURABLE_DEFAULTS", {"max_attempts": 0}),
    ("E010", "DURABLE_DEFAULTS", {"timeout": 60}),
    ("E010", "DURABLE_DEFAULTS", {3: 60}),
    ("E011", "DURABLE_NOTIFY", "yes"),
    ("E012", "DURABLE_LISTEN_DATABASE", "nowhere"),
    ("E013", "USE_TZ", False),
]


def test_test_project_has_no_findings() -> None:
    assert check_settings(None) == check_engines(None) == []


@pytest.mark.parametrize(("id_", "name", "value"), WRONG)
def test_wrong_setting_is_an_error_with_a_remedy(id_: str, name: str, value: Any) -> None:
    message = only(findings(**{name: value}))

    assert message.id == f"durable.{id_}"
    assert message.level == django_checks.ERROR
    assert name in str(message.msg)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("DURABLE_DATABASE", "default"),
        ("DURABLE_LEASE", SECOND),
        ("DURABLE_POLL_INTERVAL", timedelta(milliseconds=50)),
        ("DURABLE_MAX_DEPTH", 0),
        ("DURABLE_MAX_PAYLOAD", 10_000),
        ("DURABLE_KEEP_COMPLETED", timedelta(0)),
        ("DURABLE_KEEP_COMPLETED", None),
        ("DURABLE_KEEP_DEAD", None),
        ("DURABLE_FAIR_SHARE", None),
        ("DURABLE_FAIR_SHARE", 1),
        ("DURABLE_DEFAULTS", {"max_attempts": None, "backoff": Backoff(jitter=0)}),
        ("DURABLE_NOTIFY", False),
        ("DURABLE_LISTEN_DATABASE", "default"),
    ],
)
def test_right_setting_has_no_findings(name: str, value: Any) -> None:
    assert findings(**{name: value}) == []


def test_hint_says_what_is_wanted_and_what_the_default_is() -> None:
    message = only(findings(DURABLE_LEASE=30))

    assert message.msg == "DURABLE_LEASE is 30."
    assert message.hint == (
        "Make it a timedelta from one second to one day,"
        " or remove it for datetime.timedelta(seconds=30)."
    )


def test_every_wrong_default_option_is_reported() -> None:
    wrong = {"max_atempts": 5, "priority": 101, "max_attempts": 2}
    misspelt, out_of_range = findings(DURABLE_DEFAULTS=wrong)

    assert misspelt.hint == "Did you mean max_attempts?"
    assert "priority must be a whole number from -100 to 100" in str(out_of_range.msg)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("DURABLE_LEASES", "Did you mean DURABLE_LEASE?"),
        ("DURABLE_XYZ", "There is only DURABLE_DATABASE, DURABLE_DEFAULTS, "),
    ],
)
def test_setting_that_does_not_exist_is_a_warning(name: str, hint: str) -> None:
    message = only(findings(**{name: 1}))

    assert (message.id, message.level) == ("durable.W001", django_checks.WARNING)
    assert name in str(message.msg)
    assert str(message.hint).startswith(hint)


@pytest.fixture
def with_sqlite(monkeypatch: pytest.MonkeyPatch) -> None:
    databases = {
        "default": connections.settings["default"],
        "lite": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"},
    }
    monkeypatch.setattr(checks, "connections", ConnectionHandler(databases))


@pytest.mark.usefixtures("with_sqlite")
@pytest.mark.parametrize("name", ["DURABLE_DATABASE", "DURABLE_LISTEN_DATABASE"])
def test_database_that_is_not_postgresql_is_an_error(name: str) -> None:
    with override_settings(**{name: "lite"}):
        message = only(check_engines(None))
        assert check_server(None, databases=["lite"]) == []

    assert message.id == "durable.E014"
    assert "'lite' of django_durable is not PostgreSQL" in str(message.msg)


def test_psycopg2_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psycopg_any, "is_psycopg3", False)
    message = only(check_engines(None))

    assert message.id == "durable.E015"
    assert "psycopg[binary]" in str(message.hint)


def test_missing_alias_is_reported_once() -> None:
    with override_settings(DURABLE_DATABASE="nowhere", DURABLE_LISTEN_DATABASE=["x"]):
        assert check_engines(None) == []
        assert check_server(None, databases=["nowhere"]) == []


@pytest.mark.django_db
def test_server_of_the_suite_is_new_enough() -> None:
    assert check_server(None, databases=["default"]) == []


@pytest.mark.django_db
@pytest.mark.parametrize("oldest", [99, 2000])
def test_server_that_is_too_old_is_an_error(oldest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "OLDEST_SERVER", oldest)
    message = only(check_server(None, databases=["default"]))

    assert message.id == "durable.E016"
    assert f"PostgreSQL {oldest} or newer" in str(message.hint)


def other_connections(**changes: Any) -> ConnectionHandler:
    return ConnectionHandler({"default": {**connections.settings["default"], **changes}})


@pytest.mark.django_db
def test_server_that_django_refuses_is_the_same_error(monkeypatch: pytest.MonkeyPatch) -> None:
    fresh = other_connections()
    monkeypatch.setattr(base, "RAN_DB_VERSION_CHECK", set())
    monkeypatch.setattr(fresh["default"].features, "minimum_database_version", (99,))
    monkeypatch.setattr(checks, "connections", fresh)
    message = only(check_server(None, databases=["default"]))
    fresh.close_all()

    assert message.id == "durable.E016"
    assert "PostgreSQL 99 or later is required" in str(message.msg)


@pytest.mark.django_db
def test_server_that_can_t_be_reached_is_no_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "connections", other_connections(HOST="127.0.0.1", PORT=1))

    assert check_server(None, databases=["default"]) == []


def test_server_is_asked_only_when_its_database_is_named() -> None:
    assert check_server(None) == check_server(None, databases=["other"]) == []


def test_registered_checks_run_with_all_others() -> None:
    registry = django_checks.registry.registry
    before = set(registry.registered_checks)
    checks.register_checks()
    try:
        with override_settings(DURABLE_LEASE=1, DURABLE_TYPO=1):
            found = {message.id for message in django_checks.run_checks(tags=[checks.TAG])}
        assert found >= {"durable.E002", "durable.W001"}
        assert check_server in registry.registered_checks
    finally:
        registry.registered_checks = before


@pytest.mark.django_db
@pytest.mark.parametrize("command", [["check"], ["durable", "status"], ["worker", "--batch"]])
def test_wrong_settings_are_told_as_such_where_code_declares_schedules(
    command: list[str], tmp_path: Path
) -> None:
    (tmp_path / "declaring").mkdir()
    (tmp_path / "declaring" / "__init__.py").touch()
    (tmp_path / "declaring" / "jobs.py").write_text(
        "from django_durable import job, schedule\n\n"
        "@schedule(cron='@daily')\n@job\ndef work(): ...\n"
    )
    (tmp_path / "declaring" / "urls.py").write_text("import declaring.jobs\n\nurlpatterns = []\n")
    (tmp_path / "wrong.py").write_text(
        "from tests.settings import *\n\nINSTALLED_APPS = [*INSTALLED_APPS, 'declaring']\n"
        "ROOT_URLCONF = 'declaring.urls'\nDURABLE_MAX_PAYLOAD = '1 MB'\n"
        "DURABLE_DEFAULTS = {'max_attempts': 0, 'x': 1}\n"
    )
    done = subprocess.run(
        [sys.executable, "manage.py", *command, "--pythonpath", tmp_path, "--settings", "wrong"],
        cwd=CHECKOUT,
        env={**os.environ, "DATABASE_URL": database_url()},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert done.stderr.count("(durable.E010)") == 2
    assert done.stderr.count("(durable.E005)") == 1
