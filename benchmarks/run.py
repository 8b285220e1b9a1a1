"""Measure the package on a private PostgreSQL with stock durability, beside what the machine can.

A table of all figures goes to stdout; or, if that is for the JSON lines, to stderr with the rest.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import django

from benchmarks import session
from benchmarks.cases import CASES, QUICK
from benchmarks.cases.peers import PEERS
from testproject.embedded import Server

# Without --set nothing else differs from what initdb writes: fsync and synchronous_commit are on.
SERVER_SETTINGS = {"max_connections": 500}


def peer_names(text: str) -> list[str]:
    """Read a list of peers with commas."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if unknown := set(names) - set(PEERS):
        raise argparse.ArgumentTypeError(f"no peer is called {', '.join(sorted(unknown))}")
    return names


def setting(text: str) -> tuple[str, str]:
    """Read the name and the value of a setting of the server."""
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise argparse.ArgumentTypeError(f"{text!r} is no NAME=VALUE")
    return name, value


def parse(argv: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").splitlines()[0],
        epilog=f"Cases: {', '.join(CASES)}.",
    )
    parser.add_argument("cases", nargs="*", metavar="CASE", help="Run these only. Default: all.")
    parser.add_argument(
        "--quick",
        action="store_true",
        help=f"A smoke test: one round, small sizes, and of the cases {', '.join(QUICK)}.",
    )
    parser.add_argument("--rounds", type=int, help="Runs of each measure. Default: 3.")
    parser.add_argument(
        "--peers",
        type=peer_names,
        default=[],
        metavar="NAME,...",
        help=f"Measure these beside, of {', '.join(PEERS)}; installs them.",
    )
    parser.add_argument(
        "--set",
        type=setting,
        action="append",
        default=[],
        dest="settings",
        metavar="NAME=VALUE",
        help="Start the server with this setting, too. commit_delay=150 with commit_siblings=0 is"
        " a disk that takes 150 microseconds longer for each commit.",
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="Write the JSON lines there. Default: stdout."
    )
    parser.add_argument(
        "--markdown", type=Path, metavar="FILE", help="Write the table for the documentation there."
    )
    asked = parser.parse_args(argv)
    if unknown := set(asked.cases) - set(CASES):
        parser.error(f"no case is called {', '.join(sorted(unknown))}")
    return asked


def command(asked: argparse.Namespace) -> str:
    """Return the command that measures the same again, wherever its output goes."""
    words = ["python benchmarks/run.py"]
    if asked.quick:
        words.append("--quick")
    if asked.rounds:
        words.append(f"--rounds {asked.rounds}")
    if asked.peers:
        words.append(f"--peers {','.join(asked.peers)}")
    words += [f"--set {name}={value}" for name, value in asked.settings]
    return " ".join([*words, *asked.cases])


def main(argv: list[str]) -> int:
    """Run what was asked for; 1 if a case failed, however the targets stand."""
    asked = parse(argv)
    with Server(settings={**SERVER_SETTINGS, **dict(asked.settings)}) as server:
        os.environ["DATABASE_URL"] = server.url
        os.environ["DJANGO_SETTINGS_MODULE"] = "benchmarks.app.settings"
        django.setup()
        return session.run(server, asked, command(asked))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
