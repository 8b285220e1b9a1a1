"""A PgBouncer of a test's own, in transaction mode, where the program is installed."""

from __future__ import annotations

import shutil
import socket
import subprocess
from pathlib import Path
from urllib.parse import unquote, urlsplit, urlunsplit

from testproject.postgres_files import find_account, give, process_options, temporary_folder
from tests.processes.harness import wait_for

PROGRAM = shutil.which("pgbouncer", path="/usr/sbin:/usr/bin:/usr/local/bin")

CONFIGURATION = """
[databases]
* = host={host} port={port} user={user} password={password}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {own_port}
unix_socket_dir =
auth_type = plain
auth_file = {folder}/users
pool_mode = transaction
default_pool_size = {sessions}
max_client_conn = {clients}
ignore_startup_parameters = extra_float_digits
"""


class PgBouncer:
    """Put a pooler with few sessions before a server, until the end of a `with` block."""

    def __init__(self, url: str, sessions: int = 4, clients: int = 200) -> None:
        account = find_account()
        self._folder = temporary_folder(account)
        server = urlsplit(url)
        user, password = unquote(server.username or ""), unquote(server.password or "")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            own_port = probe.getsockname()[1]
        self._own_port = own_port
        texts = {
            "users": f'"{user}" "{password}"\n',
            "configuration": CONFIGURATION.format(
                host=server.hostname,
                port=server.port or 5432,
                user=user,
                password=password,
                own_port=own_port,
                folder=self._folder,
                sessions=sessions,
                clients=clients,
            ),
        }
        for name, text in texts.items():
            path = self._folder / name
            path.write_text(text)
            path.chmod(0o600)
            give(path, account)
        credentials = server.netloc.rpartition("@")[0]
        self.url = urlunsplit(server._replace(netloc=f"{credentials}@127.0.0.1:{own_port}"))
        self._log = (self._folder / "log").open("wb")
        self._process = subprocess.Popen(
            [str(PROGRAM), str(self._folder / "configuration")],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            **process_options(account),
        )

    def __enter__(self) -> PgBouncer:
        wait_for("PgBouncer", self._answers)
        return self

    def _answers(self) -> bool:
        assert self._process.poll() is None, Path(self._log.name).read_text()
        try:
            socket.create_connection(("127.0.0.1", self._own_port), timeout=1).close()
        except OSError:
            return False
        return True

    def __exit__(self, *exc_info: object) -> None:
        self._process.kill()
        self._process.wait()
        self._log.close()
        shutil.rmtree(self._folder)
