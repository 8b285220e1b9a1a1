"""What the log shows of an error keeps the bounds of what is stored of one."""
# ruff: noqa: N818 - these errors are thrown together for one test each

from __future__ import annotations

import json
import logging
import threading
from datetime import timedelta
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction

from django_durable import firing, job, signals, steps
from django_durable.aside import Aside
from django_durable.errortext import MAX_TRACEBACK
from django_durable.jobtypes import registry
from django_durable.logs import JsonFormatter
from django_durable.schedules import make_rule
from django_durable.worker import answers, child, childprocess, connections, loops, supervisor


class Endless(Exception):
    def __str__(self) -> str:
        return "head\x00" + "x" * 5_000_000 + "tail"


class Mute(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


def line(logger: logging.Logger, error: BaseException, form: logging.Formatter) -> str:
    """Return the line that says that the error was raised."""
    lines: list[str] = []

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(form.format(record))

    handler = Lines()
    logger.addHandler(handler)
    try:
        with pytest.raises(type(error)):
            raise error
        logger.error("It went wrong", exc_info=error)
    finally:
        logger.removeHandler(handler)
    (found,) = lines
    return found


@pytest.mark.parametrize("form", [logging.Formatter(), JsonFormatter("desk")])
@pytest.mark.parametrize(
    "module",
    [firing, signals, steps, answers, child, childprocess, connections, loops, supervisor],
)
def test_each_logger_shows_an_error_within_bounds(module: Any, form: logging.Formatter) -> None:
    text = line(module.logger, Endless(), form)
    assert len(text) < MAX_TRACEBACK + 1000
    assert "\x00" not in text
    assert "left out" in text
    assert "test_errorlog.py" in text
    assert "its __str__ raised SystemExit" in line(module.logger, Mute(), form)


def test_json_has_the_same_text_as_the_traceback() -> None:
    told = json.loads(line(firing.logger, ValueError("why"), JsonFormatter("desk")))
    assert told["message"] == "It went wrong"
    assert told["traceback"].endswith("ValueError: why")


@pytest.mark.django_db
def test_the_log_shows_none_of_what_a_database_was_given() -> None:
    secret = "my" + "secret"
    with pytest.raises(IntegrityError, match=secret) as raised, transaction.atomic():
        connection.cursor().execute("INSERT INTO durable_schedule (name) VALUES (%s)", [secret])
    text = line(firing.logger, raised.value, logging.Formatter())
    assert secret not in text
    assert "null value in column" in text


def test_frames_of_the_package_itself_are_shown() -> None:
    try:
        make_rule(
            cron=None, every=None, timezone="UTC", starts_at=None, until=None,
            catch_up="one", overlap="allow", jitter=None,
        )  # fmt: skip
    except ValueError as error:
        text = line(firing.logger, error, logging.Formatter())
    assert "in make_rule" in text


@pytest.mark.django_db
def test_an_error_of_a_key_is_put_in_words_where_it_was_raised(
    caplog: pytest.LogCaptureFixture,
) -> None:
    asked: list[int] = []

    class Nosy(Exception):
        def __str__(self) -> str:
            asked.append(threading.get_ident())
            return "why"

        def __getattr__(self, name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            raise RuntimeError(name)

    def key() -> str:
        raise Nosy

    kind = job(name="errorlog.keyed", concurrency_key=key)(lambda: None)
    try:
        row = kind.schedule("at once", every=timedelta(days=1))
        with Aside().asking():
            firing.run_due(["errorlog.keyed"])
    finally:
        registry.remove(kind)
    row.refresh_from_db()
    assert row.broken.endswith("Nosy: why")
    assert "raise Nosy" in logging.Formatter().format(caplog.records[0])
    assert asked
    assert threading.get_ident() not in asked
