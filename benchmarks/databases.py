"""The databases of one run: copies of a migrated one, each empty, on the private server."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, LiteralString
from urllib.parse import urlsplit, urlunsplit

import psycopg
from django.core.management import call_command
from django.db import connections
from psycopg import sql

from testproject.embedded import Server

Connection = psycopg.Connection[Any]
TEMPLATE = "benchmark_template"


def value(db: Connection, query: LiteralString, params: Sequence[object] = ()) -> Any:
    """Return the one value that a query gives, None for no row."""
    row = db.execute(query, params).fetchone()
    return row[0] if row else None


class Databases:
    """Make databases on a server, and point this process at one of them."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def url(self, name: str) -> str:
        """Return the address of a database."""
        return urlunsplit(urlsplit(self._server.url)._replace(path=f"/{name}"))

    def connect(self, name: str) -> Connection:
        """Return a bare autocommit connection."""
        return psycopg.connect(self.url(name), autocommit=True)

    def make(self, name: str, template: str = "template1") -> str:
        """Make a database anew, as a copy of `template`, and return its name."""
        with self.connect("postgres") as db:
            db.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
            db.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
        return name

    def migrate(self) -> None:
        """Make the database that `fresh` copies; Django must be pointed at this server."""
        self.use(self.make(TEMPLATE))
        call_command("migrate", verbosity=0)
        connections.close_all()

    def fresh(self, name: str) -> str:
        """Make a database with the tables of the package and no rows, and return its name."""
        connections.close_all()
        return self.make(name, TEMPLATE)

    def drop(self, name: str) -> None:
        """Drop a database and the connections to it."""
        connections.close_all()
        with self.connect("postgres") as db:
            db.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")

    def use(self, name: str) -> None:
        """Point Django, in this thread, at a database."""
        connections.close_all()
        connections["default"].settings_dict["NAME"] = name

    @contextmanager
    def settings(self, **settings: str) -> Iterator[None]:
        """Run the server with other settings, of those that need no restart, during a block."""
        names = {name: sql.Identifier(name) for name in settings}
        with self.connect("postgres") as db:
            try:
                for name, new in settings.items():
                    db.execute(sql.SQL("ALTER SYSTEM SET {} = {}").format(names[name], new))
                db.execute("SELECT pg_reload_conf()")
                yield
            finally:
                for name in settings:
                    db.execute(sql.SQL("ALTER SYSTEM RESET {}").format(names[name]))
                db.execute("SELECT pg_reload_conf()")
