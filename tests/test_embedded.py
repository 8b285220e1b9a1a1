"""The private PostgreSQL: it starts anywhere, survives crashes, and leaves nothing behind."""

import json
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import environ
import psycopg
import pytest

from testproject import embedded, postgres_files
from testproject.embedded import Server
from testproject.postgres_files import ServerError

CHECKOUT = Path(__file__).resolve().parent.parent


def value(server: Server, query: str) -> str:
    with psycopg.connect(server.url, autocommit=True) as connection:
        return connection.execute(query).fetchone()[0]


@pytest.fixture
def data_dir(tmp_path) -> Iterator[Path]:
    yield tmp_path / "data"
    Server(tmp_path / "data").remove()


def keep_42(server: Server) -> None:
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute("create table kept as select 42 as n")


def process_id(server: Server) -> int:
    return int((server.cluster / "postmaster.pid").read_text().split()[0])


def owner(code: str, **environment: str) -> subprocess.Popen:
    """Start a Python process that prints a line of JSON and then waits for its standard input."""
    return subprocess.Popen(
        [sys.executable, "-c", f"import json, sys\n{code}\nsys.stdin.read()"],
        cwd=CHECKOUT,
        env={**os.environ, **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def report(process: subprocess.Popen) -> dict:
    return json.loads(process.stdout.readline())


def end(process: subprocess.Popen) -> None:
    with process:
        process.communicate()


def wait_for_exit(pid: int) -> None:
    """Wait for the end of a process that need not be a child; an event, where there is one."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([handle], [], [], 30)[0], "the process did not end"
    finally:
        os.close(handle)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_durability_is_stock_unless_asked_otherwise(data_dir):
    with Server(data_dir) as server:
        assert value(server, "show fsync") == "on"
        assert value(server, "show synchronous_commit") == "on"
        assert value(server, "show full_page_writes") == "on"


def test_settings_reach_the_server_whatever_characters_they_have(data_dir):
    settings = {"max_connections": 33, "cluster_name": "it's $HOME"}
    with Server(data_dir, settings=settings) as server:
        assert value(server, "show max_connections") == "33"
        assert value(server, "show cluster_name") == "it's $HOME"
        server.restart()
        assert value(server, "show max_connections") == "33"


def test_the_url_is_what_django_environ_reads(private_server):
    config = environ.Env.db_url_config(private_server.url)
    assert config["ENGINE"] == "django.db.backends.postgresql"
    with psycopg.connect(
        host=config["HOST"],
        port=config["PORT"],
        user=config["USER"],
        password=config["PASSWORD"],
        dbname=config["NAME"],
    ) as connection:
        assert connection.execute("select 1").fetchone() == (1,)


def test_only_the_password_opens_the_server(private_server):
    url = private_server.url.replace("postgres:", "postgres:not-", 1)
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(url)
    assert value(private_server, "show listen_addresses") == "127.0.0.1"
    assert value(private_server, "show unix_socket_directories") == ""


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_a_restart_keeps_address_and_committed_data(private_server, mode):
    url = private_server.url
    keep_42(private_server)
    private_server.restart(mode)
    assert private_server.url == url
    assert value(private_server, "select n from kept") == 42


def test_sessions_end_when_the_server_stops(private_server):
    with psycopg.connect(private_server.url) as connection:
        private_server.stop()
        assert not private_server.is_running()
        with pytest.raises(psycopg.OperationalError):
            connection.execute("select 1")
    private_server.stop()  # nothing to do
    private_server.start()
    assert value(private_server, "select 1") == 1


def test_a_cluster_is_kept_between_runs(data_dir):
    with Server(data_dir) as server:
        keep_42(server)
    with Server(data_dir) as server:
        assert value(server, "select n from kept") == 42


def test_a_killed_server_recovers_from_its_stale_pid_file(private_server):
    pid = process_id(private_server)
    keep_42(private_server)
    os.kill(pid, signal.SIGKILL)
    wait_for_exit(pid)
    assert (private_server.cluster / "postmaster.pid").exists()
    assert not private_server.is_running()
    private_server.start()
    assert value(private_server, "select n from kept") == 42


def test_a_pid_file_that_names_another_process_is_no_running_server(private_server):
    private_server.stop()
    lines = [str(os.getpid()), str(private_server.cluster), "0", "1", "", "127.0.0.1", "", ""]
    (private_server.cluster / "postmaster.pid").write_text("\n".join(lines))
    assert not private_server.is_running()
    private_server.start()
    assert value(private_server, "select 1") == 1


def test_an_initdb_killed_half_way_leaves_nothing_that_counts(data_dir):
    server = Server(data_dir)
    unfinished = server.folder / "cluster.new"
    unfinished.mkdir()
    (unfinished / "PG_VERSION").write_text("18\n")
    with server:
        assert value(server, "select 1") == 1
    assert not unfinished.exists()


def test_a_taken_port_is_passed_over(monkeypatch, private_server):
    taken = int(private_server.url.rpartition(":")[2].partition("/")[0])
    real = embedded._free_port
    ports = iter([taken])
    monkeypatch.setattr(embedded, "_free_port", lambda: next(ports, None) or real())
    with Server() as server:
        assert value(server, "select 1") == 1
        assert f":{taken}/" not in server.url


def test_a_failed_start_says_why(data_dir, monkeypatch):
    monkeypatch.setattr(embedded, "START_TRIES", 1)
    server = Server(data_dir, settings={"shared_buffers": "nonsense"})
    with pytest.raises(ServerError, match="invalid value for parameter"):
        server.start()
    with pytest.raises(ServerError, match="has not been started"):
        _ = server.url


def test_every_bundled_version_serves():
    bundled = [folder for folder in postgres_files._bin_candidates() if "pginstall" in str(folder)]
    versions = {postgres_files.major_version(folder) for folder in bundled}
    for version in versions:
        with Server(version=version) as server:
            assert value(server, "show server_version").startswith(f"{version}.")


def test_pg_bin_chooses_the_programs(monkeypatch, tmp_path):
    chosen = tmp_path / "bin"
    chosen.symlink_to(postgres_files.find_bin())
    monkeypatch.setenv("PG_BIN", str(chosen))
    assert postgres_files.find_bin() == chosen
    monkeypatch.setenv("PG_BIN", str(tmp_path / "empty"))
    assert postgres_files.find_bin() != chosen


def test_an_unknown_version_is_an_error_with_a_way_out():
    with pytest.raises(ServerError, match="DATABASE_URL"):
        postgres_files.find_bin(3)


def test_a_temporary_cluster_goes_with_its_block():
    with Server() as server:
        pid = process_id(server)
    assert not server.folder.exists()
    wait_for_exit(pid)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_server_ends_with_an_owner_that_is_killed(number):
    code = (
        "from testproject.embedded import Server\n"
        "server = Server().start()\n"
        "pid = int((server.cluster / 'postmaster.pid').read_text().split()[0])\n"
        "print(json.dumps({'pid': pid, 'guard': server._guard.pid}), flush=True)"
    )
    with owner(code) as process:
        pids = report(process)
        process.send_signal(number)
        process.wait()
    wait_for_exit(pids["pid"])
    wait_for_exit(pids["guard"])


@pytest.fixture
def shared_dir(tmp_path, monkeypatch):
    """Let processes started by `owner` share a server of their own instead of the checkout's."""
    monkeypatch.delenv("DATABASE_URL")
    monkeypatch.setattr(embedded, "LOCAL_DIR", tmp_path)
    yield tmp_path
    embedded._shared_server().remove()


def user_of_shared_server(folder: Path) -> subprocess.Popen:
    return owner(
        "from pathlib import Path\n"
        "from testproject import embedded\n"
        f"embedded.LOCAL_DIR = Path({str(folder)!r})\n"
        "url = embedded.database_url()\n"
        "server = embedded._join_shared_server()\n"
        "pid = int((server.cluster / 'postmaster.pid').read_text().split()[0])\n"
        "print(json.dumps({'pid': pid, 'url': url}), flush=True)"
    )


def test_the_shared_server_lives_from_its_first_user_to_its_last(shared_dir):
    together = [user_of_shared_server(shared_dir) for _ in range(3)]
    seen = [report(process) for process in together]
    assert len({(user["pid"], user["url"]) for user in seen}) == 1
    *first_out, last = together
    for process in first_out:
        end(process)
    assert is_alive(seen[0]["pid"])
    end(last)
    wait_for_exit(seen[0]["pid"])
    again = user_of_shared_server(shared_dir)
    assert report(again)["pid"] != seen[0]["pid"]
    end(again)


def test_the_shared_server_left_by_a_killed_user_goes_with_the_next(shared_dir):
    with user_of_shared_server(shared_dir) as killed:
        left = report(killed)
        killed.kill()
        killed.wait()
    assert is_alive(left["pid"])
    following = user_of_shared_server(shared_dir)
    assert report(following) == left
    end(following)
    wait_for_exit(left["pid"])


def test_database_url_wins_over_the_shared_server(monkeypatch):
    monkeypatch.setenv("DATABASE_URL", "postgresql://somewhere/else")
    assert embedded.database_url() == "postgresql://somewhere/else"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root serves through another account")
class TestAsRoot:
    def test_programs_and_data_under_a_closed_folder_are_kept_elsewhere(
        self, tmp_path, monkeypatch
    ):
        closed = tmp_path / "home"
        closed.mkdir(mode=0o700)
        source = postgres_files.find_bin()
        copy = closed / source.parent.parent.name / source.parent.name / source.name
        shutil.copytree(source.parent, copy.parent)
        libraries = source.parent.parent.with_name(f"{source.parent.parent.name}.libs")
        if libraries.exists():
            shutil.copytree(libraries, closed / libraries.name)
        monkeypatch.setenv("PG_BIN", str(copy))

        with Server(closed / "data") as server:
            assert value(server, "select 1") == 1
            assert not server.bin.is_relative_to(closed)
            assert not server.folder.is_relative_to(closed)
        assert Server(closed / "data").folder == server.folder
        server.remove()
        assert closed.stat().st_mode & 0o777 == 0o700

    def test_the_server_does_not_run_as_root(self, private_server):
        owner_of_process = Path(f"/proc/{process_id(private_server)}").stat().st_uid
        assert owner_of_process == private_server.account.pw_uid != 0
