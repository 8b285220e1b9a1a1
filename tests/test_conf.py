"""Settings: their defaults, and that nothing of them is remembered."""

import subprocess
import sys
from datetime import timedelta
from typing import Any

import pytest
from django.conf import settings as django_settings
from django.test import override_settings

from django_durable.conf import SETTINGS, conf


def test_defaults_are_those_of_the_reference() -> None:
    assert {name: getattr(conf, name.removeprefix("DURABLE_").lower()) for name in SETTINGS} == {
        "DURABLE_DATABASE": "default",
        "DURABLE_LEASE": timedelta(seconds=30),
        "DURABLE_POLL_INTERVAL": timedelta(seconds=1),
        "DURABLE_MAX_DEPTH": 32,
        "DURABLE_MAX_PAYLOAD": 1024 * 1024,
        "DURABLE_KEEP_COMPLETED": timedelta(days=7),
        "DURABLE_KEEP_DEAD": timedelta(days=30),
        "DURABLE_DROP_COMPLETED_PAYLOADS": False,
        "DURABLE_FAIR_SHARE": 10,
        "DURABLE_DEFAULTS": {},
        "DURABLE_NOTIFY": True,
        "DURABLE_LISTEN_DATABASE": None,
    }


def test_override_counts_at_once_and_ends_at_once() -> None:
    assert conf.max_depth == 32
    with override_settings(DURABLE_MAX_DEPTH=3, DURABLE_KEEP_DEAD=None):
        assert conf.max_depth == 3
        assert conf.keep_dead is None
        with override_settings(DURABLE_MAX_DEPTH=4):
            assert conf.max_depth == 4
        assert conf.max_depth == 3
    assert conf.max_depth == 32


def test_plain_assignment_counts_at_once(monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
    monkeypatch.setattr(django_settings, "DURABLE_LEASE", timedelta(seconds=5), raising=False)
    assert conf.lease == timedelta(seconds=5)
    settings.DURABLE_LEASE = timedelta(seconds=6)
    assert conf.lease == timedelta(seconds=6)


def test_import_does_not_need_settings_and_late_ones_count() -> None:
    script = (
        "from django_durable.conf import conf\n"
        "from django.conf import settings\n"
        "settings.configure(DURABLE_MAX_DEPTH=5)\n"
        "print(conf.max_depth, conf.notify)\n"
    )
    answer = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env={}
    )

    assert answer.stdout == "5 True\n"
