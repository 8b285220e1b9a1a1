"""One run: the cases that were asked for, and what is printed of them."""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Iterator

from benchmarks import machine, report
from benchmarks.bench import Bench, Case, Skipped
from benchmarks.cases import CASES, QUICK
from benchmarks.cases.peers import case_of
from benchmarks.databases import Databases
from benchmarks.figures import Figure
from benchmarks.limits import Limits
from testproject.embedded import Server


class Session:
    """Run cases in order; one that fails does not keep the others from running."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self.figures: list[Figure] = []
        self.failed: list[str] = []

    def run(self, name: str, case: Case) -> None:
        """Run one case and keep its figures."""
        self._bench.say(name)
        try:
            for figure in self._figures(name, case):
                self.figures.append(figure)
                print("  ".join(filter(None, report.row(figure))), file=sys.stderr, flush=True)
        except Skipped as why:
            self._bench.say(f"{name} is skipped: {why}")
        except Exception:  # noqa: BLE001 - whatever stops one case
            self.failed.append(name)
            self._bench.say(f"{name} failed:\n{traceback.format_exc()}")

    def _figures(self, name: str, case: Case) -> Iterator[Figure]:
        yield from case(self._bench)


def run(server: Server, asked: argparse.Namespace, command: str) -> int:
    """Run the cases and report; return the exit code."""
    cases = {name: CASES[name] for name in asked.cases or (QUICK if asked.quick else CASES)}
    cases |= {f"peer-{name}": case_of(name) for name in asked.peers}
    databases = Databases(server)
    databases.migrate()
    limits = Limits(databases, asked.quick)
    rounds = asked.rounds or (1 if asked.quick else 3)
    bench = Bench(databases, limits, asked.quick, rounds, asked.peers)
    with databases.connect("postgres") as db:
        facts = machine.describe(db, [name for name, _value in asked.settings])
    for name, value in facts.items():
        print(f"{name}: {value}", file=sys.stderr)
    session = Session(bench)
    try:
        for name, case in cases.items():
            session.run(name, case)
    finally:
        limits.close()
    return _report(session, bench, facts, asked, command)


def _report(
    session: Session, bench: Bench, facts: dict[str, str], asked: argparse.Namespace, command: str
) -> int:
    figures = [*report.limit_figures(bench.limit_values), *session.figures]
    table = report.as_text(figures)
    if asked.json:
        with asked.json.open("w") as stream:
            report.write_json(stream, facts, figures)
        print(table)
    else:
        print(table, file=sys.stderr)
        report.write_json(sys.stdout, facts, figures)
    if asked.markdown:
        asked.markdown.write_text(report.as_markdown(figures, facts, command))
    return _complain(f"Failed: {', '.join(session.failed)}.") if session.failed else 0


def _complain(text: str) -> int:
    print(text, file=sys.stderr)
    return 1
