"""A private PostgreSQL for development, the demo, the tests and the benchmarks.

`Server` owns one cluster: it makes it, and starts, stops and restarts it on a port of 127.0.0.1,
with a password of its own. `database_url` is what the settings call: it gives `DATABASE_URL`, or
else the one cluster of this checkout, whose server runs as long as some process uses it.
"""

import atexit
import fcntl
import functools
import os
import random
import secrets
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, Self

from testproject.postgres_files import (
    ServerError,
    find_account,
    find_bin,
    give,
    major_version,
    process_options,
    reachable_bin,
    reachable_folder,
    temporary_folder,
)

LOCAL_DIR = Path(__file__).resolve().parent.parent / ".local"

# Below the ports that systems hand to clients: on one of those, a client that keeps trying to reach
# a stopped server may be handed the server's own port and end up connected to itself.
PORTS = range(15_000, 32_000)

START_TRIES = 20
TIMEOUT_SECONDS = 60

# Ends the server when its standard input closes, which happens however the owner ends.
GUARD = 'read _; "$0" stop -D "$1" -m immediate -w; [ -z "$2" ] || rm -rf "$2"'

StopMode = Literal["smart", "fast", "immediate"]


class Server:
    """Own a private PostgreSQL cluster and the process that serves it.

    `data_dir` keeps the cluster between runs; without one it is temporary and goes with `remove`,
    at the end of a `with` block, or with a guarded owner that dies. `settings` are passed as
    `-c name=value`; durability is stock unless they say otherwise. `version` picks a major version
    where several are at hand. With `guard` the server stops when the process that started it ends,
    even by SIGKILL; without, it runs until `stop`.

    The `url` stays the same over any `stop`, `start` and `restart` of one object. A cluster whose
    server was killed is recovered by the next `start`; an `initdb` killed half way leaves nothing
    that counts. Every method raises `ServerError` if PostgreSQL does not do what it should.
    """

    def __init__(
        self,
        data_dir: Path | None = None,
        *,
        settings: Mapping[str, str | int] | None = None,
        version: int | None = None,
        guard: bool = True,
    ) -> None:
        self.account = find_account()
        self.bin = reachable_bin(find_bin(version), self.account)
        self.temporary = data_dir is None
        if data_dir is None:
            self.folder = temporary_folder(self.account)
        else:
            self.folder = reachable_folder(data_dir, self.account)
        self.cluster = self.folder / "cluster"
        self.log = self.folder / "server.log"
        self.settings = dict(settings or {})
        self._port: int | None = None
        self._guarded = guard
        self._guard: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Return the `DATABASE_URL` of the database `postgres` there, once it has been started."""
        port = self._port or self._read_pid_file()[1]
        if port is None:
            raise ServerError(f"The server in {self.folder} has not been started.")
        password = (self.folder / "password").read_text().strip()
        return f"postgresql://postgres:{password}@127.0.0.1:{port}/postgres"

    def is_running(self) -> bool:
        """Tell whether the process lives and its port takes connections; it may be recovering."""
        pid, port = self._read_pid_file()
        return pid is not None and port is not None and _is_alive(pid) and _is_listening(port)

    def start(self) -> Self:
        """Start the server, and make the cluster if there is none; return once it takes queries.

        A server that runs is left as it is.
        """
        if self.is_running():
            self._port = self._read_pid_file()[1]
            return self
        self._start_guard()
        self._make_cluster()
        # A pid file is a leftover now: its process is gone, or the number is another's.
        (self.cluster / "postmaster.pid").unlink(missing_ok=True)
        fixed_port = self._port
        for attempt in range(START_TRIES):
            self._port = fixed_port or _free_port()
            if self._pg_ctl("start", "-l", str(self.log), "-o", self._options()):
                return self
            # Two passing reasons: the port was taken meanwhile, or children of a killed server
            # still hold its shared memory. They end by themselves and tell nobody, so try again.
            time.sleep(0.05 * attempt)
        self._port = fixed_port
        self._end_guard()
        raise ServerError(f"PostgreSQL did not start in {self.folder}:\n{self._log_tail()}")

    def stop(self, mode: StopMode = "fast") -> None:
        """Stop the server if it runs, and wait for its end.

        `fast` ends the sessions and shuts down cleanly; `immediate` is a crash, from which the next
        start recovers; `smart` waits for the clients to leave, a minute at most.
        """
        self._end_guard()
        if self.is_running() and not self._pg_ctl("stop", "-m", mode) and self.is_running():
            raise ServerError(f"PostgreSQL did not stop in {self.folder}:\n{self._log_tail()}")

    def restart(self, mode: StopMode = "fast", pause: float = 0.0) -> None:
        """Stop the server, leave it down for `pause` seconds, and start it on the same port."""
        self.stop(mode)
        time.sleep(pause)
        self.start()

    def remove(self) -> None:
        """Stop the server and delete the cluster."""
        self.stop("immediate")
        shutil.rmtree(self.folder)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc_info: object) -> None:
        if self.temporary:
            self.remove()
        else:
            self.stop()

    def _make_cluster(self) -> None:
        if self.cluster.exists():
            return
        password = self.folder / "password"
        password.touch(mode=0o600)
        password.write_text(secrets.token_hex(16) + "\n")
        give(password, self.account)
        # Renamed when complete, so that a cluster which exists is a whole one.
        unfinished = self.folder / "cluster.new"
        shutil.rmtree(unfinished, ignore_errors=True)
        options = [
            *(f"--pgdata={unfinished}", f"--pwfile={password}", "--username=postgres"),
            *("--auth=scram-sha-256", "--encoding=UTF8", "--locale=C"),
        ]
        if self.temporary:
            options.append("--no-sync")
        made = self._run("initdb", *options)
        if made.returncode != 0:
            raise ServerError(f"initdb failed in {self.folder}:\n{made.stdout}{made.stderr}")
        unfinished.rename(self.cluster)

    def _options(self) -> str:
        """Return the server's options as one string quoted for a shell: pg_ctl uses one."""
        own = {
            "port": self._port,
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
        }
        pairs = (own | self.settings).items()
        return " ".join(f"-c {shlex.quote(f'{name}={value}')}" for name, value in pairs)

    def _pg_ctl(self, verb: str, *args: str) -> bool:
        common = ("-D", str(self.cluster), "-w", "-t", str(TIMEOUT_SECONDS))
        return self._run("pg_ctl", verb, *common, *args).returncode == 0

    def _run(self, program: str, *args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.bin / program, *args],
            check=False,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            start_new_session=True,  # a Ctrl-C at the terminal is for the owner alone
            **process_options(self.account),
        )

    def _start_guard(self) -> None:
        self._end_guard()
        if not self._guarded:
            return
        doomed = self.folder if self.temporary else ""
        self._guard = subprocess.Popen(
            ["/bin/sh", "-c", GUARD, self.bin / "pg_ctl", self.cluster, doomed],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            **process_options(self.account),
        )

    def _end_guard(self) -> None:
        if self._guard:
            self._guard.kill()
            self._guard.communicate()
            self._guard = None

    def _read_pid_file(self) -> tuple[int | None, int | None]:
        """Return the process id and the port in the server's pid file, as far as it has them."""
        try:
            lines = (self.cluster / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return None, None
        return (int(lines[0]) if lines else None), (int(lines[3]) if len(lines) > 3 else None)

    def _log_tail(self) -> str:
        if not self.log.exists():
            return "(no log)"
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-20:])


def database_url() -> str:
    """Return `DATABASE_URL`, or else the URL of this checkout's own server, started if need be.

    Its cluster is kept in `.local/`. Each process that asks for it holds a lock until it exits, and
    the last one to leave stops the server. A process that is killed cannot: then the server stays
    until the next one leaves, or until `make stop`.
    """
    return os.environ.get("DATABASE_URL") or _join_shared_server().url


@functools.cache
def _join_shared_server() -> Server:
    server = _shared_server()
    users = os.open(server.folder / "users.lock", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(users, fcntl.LOCK_SH)  # waits while the last of the earlier users stops the server
    starting = os.open(server.folder / "start.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(starting, fcntl.LOCK_EX)
        server.start()
    finally:
        os.close(starting)
    atexit.register(_leave_shared_server, server, users, os.getpid())
    return server


def _leave_shared_server(server: Server, users: int, pid: int) -> None:
    if os.getpid() != pid:  # a fork, which shares the lock of its parent
        return
    try:
        fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return  # another process uses the server
    server.stop()
    os.close(users)


def _shared_server() -> Server:
    data_dir = LOCAL_DIR / f"postgres-{major_version(find_bin())}"
    return Server(data_dir, settings={"max_connections": 200}, guard=False)


def _free_port() -> int:
    for port in random.sample(PORTS, 100):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
    raise ServerError("There is no free port on 127.0.0.1.")


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, PermissionError):  # gone, or the number is another user's by now
        return False
    return True


def _is_listening(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except ConnectionRefusedError:
        return False
    except TimeoutError:  # too busy to answer, or frozen
        return True
    return True


if __name__ == "__main__":
    verbs = {"stop": Server.stop, "remove": Server.remove}
    if len(sys.argv) != 2 or sys.argv[1] not in verbs:
        sys.exit("usage: python -m testproject.embedded stop|remove")
    verbs[sys.argv[1]](_shared_server())
