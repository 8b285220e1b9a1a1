"""Measure the package on a private PostgreSQL with stock durability, beside what the machine can.

usage: python benchmarks/run.py [--quick] [--rounds N] [--json FILE] [CASE...]
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import django

from testproject.embedded import Server

# Nothing else differs from what initdb writes: fsync and synchronous_commit are on.
SERVER_SETTINGS = {"max_connections": 500}


def parse(argv: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("cases", nargs="*", metavar="CASE", help="Run only these. --list tells.")
    parser.add_argument("--list", action="store_true", help="List the cases and exit.")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="A smoke test: one case of each kind, one round, small sizes.",
    )
    parser.add_argument("--rounds", type=int, default=None, help="Rounds of each. Default: 3.")
    parser.add_argument("--peers", default="", help="Run these beside: procrastinate,pgqueuer.")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="Write JSON lines there, not to stdout."
    )
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="Write the table there too.")
    return parser.parse_args(argv)


def main(argv: list[str]) -> int:
    """Run what was asked for; 1 if a case failed, however the targets stand."""
    asked = parse(argv)
    with Server(settings=SERVER_SETTINGS) as server:
        os.environ["DATABASE_URL"] = server.url
        os.environ["DJANGO_SETTINGS_MODULE"] = "benchmarks.app.settings"
        django.setup()
        from benchmarks import session

        return session.run(server, asked, f"python benchmarks/run.py {' '.join(argv)}".strip())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
