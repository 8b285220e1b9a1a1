"""On what the figures were measured."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path

from benchmarks.databases import Connection, value

SETTINGS = (
    "fsync",
    "synchronous_commit",
    "full_page_writes",
    "wal_sync_method",
    "wal_level",
    "shared_buffers",
    "max_wal_size",
    "checkpoint_timeout",
    "autovacuum",
    "jit",
    "max_connections",
)


def describe(db: Connection, also: Iterable[str] = ()) -> dict[str, str]:
    """Return the machine, the versions and the server's settings that matter, by name.

    `also` names settings of this run alone.
    """
    facts = {
        "CPU": f"{_cpu_model()}, {os.cpu_count()} cores",
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.1f} GiB",
        "kernel": f"{platform.system()} {platform.release()}",
        "load before": " ".join(f"{load:.1f}" for load in os.getloadavg()),
        "Python": platform.python_version(),
        "Django": version("django"),
        "psycopg": version("psycopg"),
        "django_durable": version("django-durable-jobs"),
        "PostgreSQL": _setting(db, "server_version"),
    }
    facts |= {name: _setting(db, name) for name in (*SETTINGS, *also)}
    return facts


def _setting(db: Connection, name: str) -> str:
    return str(value(db, "SELECT current_setting(%s)", [name]))


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.machine()
