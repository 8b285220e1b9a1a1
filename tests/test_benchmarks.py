"""The benchmarks: a smoke run on a server of their own, and how figures come of rounds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.databases import Databases, value
from benchmarks.figures import Figure, Target, in_turn
from benchmarks.report import as_markdown, as_text, row
from benchmarks.workers import wait_until
from testproject.embedded import Server

ROOT = Path(__file__).resolve().parent.parent
QUICK_CASES = {"enqueue", "enqueue-many", "drain-async", "drain-default", "beside-not-due"}
QUICK_CASES |= {"latency", "result", "commits", "memory", "workflow-steps", "workflow-signal"}


def run(*args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "benchmarks/run.py", *args]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def quick_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, list[dict[str, Any]], str]:
    folder = tmp_path_factory.mktemp("benchmarks")
    done = run(
        "--quick", "--json", str(folder / "figures"), "--markdown", str(folder / "figures.md")
    )
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in (folder / "figures").read_text().splitlines()]
    return done, lines, (folder / "figures.md").read_text()


@pytest.mark.timeout(300)
def test_quick_run_measures_one_case_of_each_kind(quick_run: Any) -> None:
    _done, lines, _page = quick_run
    assert {line["case"] for line in lines[1:]} == QUICK_CASES | {"limit"}
    assert all(value > 0 for line in lines[1:] for value in line["values"])


@pytest.mark.timeout(300)
def test_quick_run_says_on_what_it_ran_with_stock_durability(quick_run: Any) -> None:
    _done, lines, page = quick_run
    machine = lines[0]
    assert machine["kind"] == "machine"
    assert machine["fsync"] == machine["synchronous_commit"] == "on"
    assert {"CPU", "memory", "kernel", "Python", "Django", "psycopg", "PostgreSQL"} <= set(machine)
    assert machine["PostgreSQL"] in page
    assert "`python benchmarks/run.py --quick`" in page


@pytest.mark.timeout(300)
def test_quick_run_prints_rates_as_ratios_to_the_limits_of_the_same_run(quick_run: Any) -> None:
    done, lines, page = quick_run
    rates = [line for line in lines[1:] if line["unit"] == "jobs/s" and line["case"] != "limit"]
    assert rates
    assert all(line["ratios"] for line in rates)
    assert "of claim+complete" in done.stdout
    assert "of claim+complete" in page


def test_unknown_names_are_refused_before_anything_starts() -> None:
    done = run("no-such-case")
    assert done.returncode == 2
    assert "no case is called no-such-case" in done.stderr
    done = run("--peers", "nobody")
    assert done.returncode == 2
    assert "no peer is called nobody" in done.stderr


def test_settings_of_the_server_are_named_beside_the_figures(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    slower = ("--set", "commit_delay=150", "--set", "commit_siblings=0")
    done = run("--quick", *slower, "--markdown", str(page), "enqueue")
    assert done.returncode == 0, done.stderr
    made_by = page.read_text().splitlines()[-1]
    assert f"{' '.join(slower)} enqueue` on:" in made_by
    assert "commit_delay 150; commit_siblings 0." in made_by
    done = run("--set", "commit_delay")
    assert done.returncode == 2
    assert "'commit_delay' is no NAME=VALUE" in done.stderr


def test_each_peer_has_pinned_requirements_and_a_program() -> None:
    folder = ROOT / "benchmarks" / "peers"
    requirements = {path.stem.removeprefix("requirements-"): path for path in folder.glob("*.txt")}
    assert set(requirements) == {"absurd", "pgqueuer", "procrastinate"}
    for name, path in requirements.items():
        assert all(line.count("==") == 1 for line in path.read_text().splitlines())
        assert (folder / f"{name}_peer.py").is_file()


def test_a_setting_of_the_server_is_another_during_a_block_only(private_server: Server) -> None:
    databases = Databases(private_server)

    def is_now(expected: str) -> bool:
        with databases.connect("postgres") as db:
            return bool(value(db, "SHOW autovacuum_naptime") == expected)

    with databases.settings(autovacuum_naptime="1s"):
        wait_until(lambda: is_now("1s"), 30, "the setting has not come")
    wait_until(lambda: is_now("1min"), 30, "the setting has not gone")


def test_a_value_is_held_against_its_neighbours_in_time() -> None:
    limit = iter([100.0, 200.0, 400.0])
    case = iter([15.0, 30.0])
    values, beside = in_turn(lambda: next(case), {"limit": lambda: next(limit)}, rounds=2)
    assert values == [15.0, 30.0]
    assert beside == {"limit": [150.0, 300.0]}


def test_a_single_round_is_held_against_what_went_before() -> None:
    values, beside = in_turn(lambda: 5.0, {"limit": lambda: 10.0}, rounds=1)
    assert (values, beside) == ([5.0], {"limit": [10.0]})


def test_the_ratio_is_the_median_of_the_rounds_own_ratios() -> None:
    figure = Figure("c", "what", "jobs/s", [10, 100, 60], {"limit": [100, 200, 100]})
    assert figure.median == 60
    assert figure.ratios == {"limit": 0.5}


@pytest.mark.parametrize(
    ("target", "met"),
    [
        (None, None),
        (Target(at_least={"limit": 0.5}), True),
        (Target(at_least={"limit": 0.51}), False),
        (Target(at_most={"limit": 0.5}), True),
        (Target(at_most={"limit": 0.49}), False),
        (Target(value_at_most=10), True),
        (Target(value_at_most=9.9), False),
        (Target(at_least={"limit": 0.9, "other": 2}), True),
    ],
)
def test_a_target_is_a_value_or_one_of_several_ratios(target: Target | None, met: bool) -> None:
    figure = Figure("c", "what", "jobs/s", [10], {"limit": [20], "other": [5]}, target)
    assert figure.is_met is met


def test_the_tables_tell_the_same() -> None:
    figure = Figure(
        "c",
        "what",
        "jobs/s",
        [1000, 1234, 2000],
        {"limit": [2000, 2468, 4000]},
        Target(at_least={"limit": 0.6}),
    )
    cells = row(figure)
    assert cells == (
        "what",
        "1,234",
        "1,000 - 2,000",
        "jobs/s",
        "0.50 of limit (2,468)",
        ">= 0.6 of limit: missed",
    )
    assert all(cell in as_text([figure]) for cell in cells)
    page = as_markdown([figure], {"CPU": "some"}, "python benchmarks/run.py")
    assert "| " + " | ".join(cells) + " |" in page
    assert "`python benchmarks/run.py`" in page
    assert "CPU some" in page
