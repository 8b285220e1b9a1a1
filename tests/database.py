"""Pytest plugin that gives the suite a private PostgreSQL, unless `DATABASE_URL` names one.

It is loaded by `-p` in the configuration, since pytest-django reads the settings, and with them the
database's address, before any `conftest.py` is imported. The process that finds no `DATABASE_URL`
starts the server and sets the variable; pytest-xdist's workers inherit it and start nothing.
"""

import os
from collections.abc import Generator

import pytest

from testproject.embedded import Server

# The suite is about what is committed, not about power cuts, so it need not wait for the disk.
SETTINGS = {"fsync": "off", "max_connections": 200}


@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> Generator[None, None, None]:
    asked = early_config.known_args_namespace
    if not (os.environ.get("DATABASE_URL") or asked.help or asked.version):
        server = Server(settings=SETTINGS).start()
        os.environ["DATABASE_URL"] = server.url
        early_config.add_cleanup(server.remove)
    return (yield)
