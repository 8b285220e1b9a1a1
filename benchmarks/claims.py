"""Time the claim of 20 jobs beside a million rows that are not for it, in turn with an empty table.

Makes a private PostgreSQL with stock durability. The claim runs as a worker's does: prepared, and
not waiting for the disk; with `--pooled` as behind a pooler: planned anew each time. A table goes
to stderr, JSON lines to stdout.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import uuid
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from statistics import median

import django

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import machine, report
from benchmarks.crowding import CROWDS, NAME, QUEUE, WIDE_CROWDS
from benchmarks.databases import Databases
from benchmarks.figures import Figure, Target
from testproject.embedded import Server

SLOTS = 20
CLAIMS = 200
ROUNDS = 3
ALL = CROWDS | WIDE_CROWDS
# What a noisy machine leaves of "within 1.5 times of the empty table".
TARGET = Target(at_most={"empty table": 1.5})


class Claimer:
    """Enqueue, claim and complete batches on one database, and time the claims."""

    def __init__(self, alias: str, names: frozenset[str] = frozenset()) -> None:
        from django.db import connections

        from django_durable import store

        self.db = connections[alias]
        owner = store.Owner("benchmark", uuid.uuid4(), timedelta(seconds=30))
        scope = store.Scope(names | {NAME}, excluded_queues=frozenset({"foreign"}))
        self.claims = store.Claims(scope, owner)
        store.relax_commits(self.db)

    def once(self) -> tuple[float, float]:
        """Return the seconds that a look and a claim took, of jobs enqueued just before."""
        self.enqueue()
        started = time.perf_counter()
        self.claims.look(self.db)
        looked = time.perf_counter()
        claimed = self.claims.claim(self.db, SLOTS)
        done = time.perf_counter()
        assert len(claimed) == SLOTS  # noqa: S101
        self.complete(claimed)
        return looked - started, done - looked

    def enqueue(self) -> None:
        """Make as many jobs as one claim takes."""
        from django_durable import store

        store.enqueue_many(self.db, [_job() for _ in range(SLOTS)])

    def complete(self, claimed: list) -> None:  # type: ignore[type-arg]
        """Record the claimed jobs as successful."""
        from django_durable import store

        keep = timedelta(days=7)
        store.record_successes(
            self.db, [store.Success((claim.id, claim.epoch), "null", keep) for claim in claimed]
        )

    def pass_through(self, count: int) -> None:
        """Let so many jobs be enqueued, claimed and completed."""
        for _ in range(count // SLOTS):
            self.once()


def _job():  # type: ignore[no-untyped-def]
    from django_durable import store
    from django_durable.choices import OnDuplicate

    return store.NewJob(
        name=NAME,
        queue_name=QUEUE,
        requires=None,
        priority=0,
        args="[1]",
        kwargs="{}",
        metadata={},
        options={},
        max_attempts=3,
        run_after=None,
        delay=timedelta(0),
        idempotency_key=None,
        on_duplicate=OnDuplicate.RETURN_EXISTING,
        concurrency_key=None,
    )


def compare(beside: Claimer, alone: Claimer, count: int) -> dict[str, tuple[float, float]]:
    """Time looks and claims in turn on both; return the median milliseconds of each kind."""
    times = [(beside.once(), alone.once()) for _ in range(count)]
    return {
        kind: (
            median(mine[place] for mine, _other in times) * 1000,
            median(other[place] for _mine, other in times) * 1000,
        )
        for place, kind in enumerate(("look", "claim"))
    }


def figures(case: str, what: str, beside: Claimer, alone: Claimer, asked) -> Iterator[Figure]:  # type: ignore[no-untyped-def]
    """Measure some rounds, as one figure for the claim and one for the look."""
    rounds = [compare(beside, alone, asked.claims) for _ in range(asked.rounds)]
    for kind, target in (("claim", TARGET), ("look", None)):
        yield Figure(
            case,
            f"{kind} {'of 20 ' if kind == 'claim' else ''}beside {what}",
            "ms",
            [found[kind][0] for found in rounds],
            {"empty table": [found[kind][1] for found in rounds]},
            target,
        )


class Run:
    """Hold the databases of one run: an empty one, and one for each crowd in its turn."""

    def __init__(self, databases: Databases, asked: argparse.Namespace) -> None:
        from django.db import connections

        self.databases = databases
        self.asked = asked
        self.connections = connections

    def alias(self, name: str) -> str:
        """Make a database and let Django know it under its own name."""
        self.databases.fresh(name)
        settings = {**self.connections["default"].settings_dict, "NAME": name}
        self.connections.settings[name] = settings
        if hasattr(self.connections._connections, name):
            del self.connections[name]
        return name

    def pair(self, names: frozenset[str] = frozenset()) -> tuple[Claimer, Claimer]:
        """Return claimers on an empty database and on the one to be crowded, both warm."""
        aliases = [self.alias("empty"), self.alias("crowded")]
        alone, beside = (Claimer(alias, names) for alias in aliases)
        for claimer in (alone, beside):
            claimer.pass_through(10 * SLOTS)
        return alone, beside

    def crowd(self, case: str) -> Iterator[Figure]:
        """Measure beside one crowd, right after it came and once it is analyzed."""
        crowd = ALL[case]
        alone, beside = self.pair(crowd.names)
        say(f"{case}: inserting {self.asked.rows:,} rows")
        crowd.fill(beside.db, self.asked.rows)
        what = f"{self.asked.rows:,} rows {crowd.rows_are}"
        if self.asked.unanalyzed:
            yield from figures(case, what + ", just inserted", beside, alone, self.asked)
        with beside.db.cursor() as cursor:
            cursor.execute("VACUUM ANALYZE durable_job")
            cursor.execute("CHECKPOINT")
        yield from figures(case, what, beside, alone, self.asked)

    def old_snapshot(self) -> Iterator[Figure]:
        """Measure after many jobs that an open transaction keeps vacuum from cleaning up."""
        alone, beside = self.pair()
        passed = self.asked.rows // 5
        with self.databases.connect("crowded") as snapshot:
            snapshot.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
            snapshot.execute("SELECT 1")
            say(f"old-snapshot: {passed:,} jobs pass")
            beside.pass_through(passed)
            yield from figures(
                "old-snapshot",
                f"{passed:,} jobs that passed since an open snapshot",
                beside,
                alone,
                self.asked,
            )
            snapshot.execute("ROLLBACK")


def say(text: str) -> None:
    """Show on stderr how far the run has come."""
    print(text, file=sys.stderr, flush=True)


def parse(argv: list[str]) -> argparse.Namespace:
    """Read the command line."""
    cases = [*ALL, "old-snapshot"]
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").splitlines()[0], epilog=f"Cases: {', '.join(cases)}."
    )
    parser.add_argument("cases", nargs="*", metavar="CASE", help="Run these only. Default: all.")
    parser.add_argument("--rows", type=int, default=1_000_000, help="Default: 1000000.")
    parser.add_argument("--claims", type=int, default=CLAIMS, help="In a round. Default: 200.")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="Default: 3.")
    parser.add_argument("--pooled", action="store_true", help="Plan each statement anew.")
    parser.add_argument(
        "--unanalyzed", action="store_true", help="Measure before the first ANALYZE, too."
    )
    parser.add_argument("--postgres", type=int, help="The major version of PostgreSQL to use.")
    asked = parser.parse_args(argv)
    if unknown := set(asked.cases) - set(cases):
        parser.error(f"no case is called {', '.join(sorted(unknown))}")
    asked.cases = asked.cases or cases
    return asked


def main(argv: list[str]) -> int:
    """Run what was asked for; 1 if a target was missed."""
    asked = parse(argv)
    with Server(version=asked.postgres) as server:
        os.environ["DATABASE_URL"] = server.url
        os.environ["DJANGO_SETTINGS_MODULE"] = "benchmarks.app.settings"
        django.setup()
        from django_durable import store

        databases = Databases(server)
        databases.migrate()
        if not asked.pooled:
            store.prepare_in_this_thread()
        with databases.connect("postgres") as db:
            facts = machine.describe(db)
        for name, value in facts.items():
            say(f"{name}: {value}")
        run = Run(databases, asked)
        found: list[Figure] = []
        for case in asked.cases:
            for figure in run.old_snapshot() if case == "old-snapshot" else run.crowd(case):
                found.append(figure)
                say("  ".join(filter(None, report.row(figure))))
        say(report.as_text(found))
        report.write_json(sys.stdout, facts, found)
    return int(any(figure.is_met is False for figure in found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
