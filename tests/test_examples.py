"""Each example runs with one command, and says what the documentation quotes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.contract.committed import database_url

CHECKOUT = Path(__file__).parent.parent

# What each prints, in this order; what else is printed between them does not matter here.
SAYS = {
    "hello": ["Hello, world!", "delivered: Hello, world!", "compose: succeeded"],
    "crash_and_resume": [
        "reserving the goods of order 7",
        "charging order 7",
        "the worker is dead",
        "charging order 7",
        "shipping order 7",
        "order 7 is done, in attempt 2",
    ],
    "steps_and_retries": [
        "fetching the rate of USD, try 1",
        "fetching the rate of USD, try 3",
        "rate 1.25, but there is no sea view",
    ],
    "side_effects": [
        "writing the order",
        "telling the warehouse",
        "failing after the steps",
        "done in 2 attempts",
    ],
    "durable_sleep": ["a quick job ran meanwhile, in the only slot", "Grace was reminded after"],
    "human_approval": ['{"delivered": true}', "paying 40 back", "approved by Ada"],
    "fan_out": ["6 words on 3 of 4 pages", "the tree has 5 jobs"],
    "await_by_id": ["news with the index of today", "letter with the index of today"],
    "async_workflow": ["fetched 3 at once", "longest: Reykjavik"],
    "changed_code": [
        "registering Ada",
        "the second version is deployed",
        "checking Ada",
        "a letter to Ada",
        "Ada was welcomed by letter",
        "Grace was welcomed by mail",
    ],
    "webhook": [
        "a new event",
        "this event is known",
        "this event is known",
        "one order for three calls: True",
    ],
    "saga": [
        "booking a flight to Lisbon",
        "booking a hotel in Lisbon",
        "the trip failed: there is no car in Lisbon",
        "compensation of hotel: succeeded",
        "compensation of flight: succeeded",
    ],
    "dead_letters": [
        "charging order 7",
        "the mail service is down",
        "the mail service is down",
        "the mail service is down",
        "reason: exhausted",
        "order 7 is charged once, and the invoice is sent",
    ],
    "video_pool": [
        "the poster of the film is drawn by the worker without",
        "no live worker serves it: nobody who serves its queue and job type has capability 'gpu'",
        "the film is encoded by the worker with a GPU",
        "the poster of the trailer is drawn by the worker with a GPU",
    ],
    "api_client": [
        "bolt is served while calls of acme wait",
        "acme: 12 calls, 4 in its busiest second",
        "bolt: 2 calls, 2 in its busiest second",
    ],
    "nightly_report": [
        "report of the night of",
        "after three nights: 1 report, 3 days booked",
    ],
    "per_tenant": [
        "acme is counted each second, bolt once an hour",
        "bolt has a better contract, and is counted each second",
        "acme is turned off: 0 runs since",
    ],
    "cleaning_up": [
        "the image is resized",
        "the image is resized and published",
        "two seconds later its record reads as gone",
        "its key is free again: True",
        "a worker has deleted the row",
        "the tree of the workflow is there: 2 jobs",
    ],
    "one_at_a_time": ["Ada has 100", "Grace has 100"],
    "three_fleets": [
        "letters: 20 by the mail fleet",
        "orders: 5 by the orders fleet",
        "reports: 3 by the reports fleet",
        "orders go on, and the letter waits: queue 'examples-",
        "-mail' is paused",
        "the letter is sent",
    ],
}
ONCE = ["reserving the goods of order 7", "writing the order", "registering Ada", "paying 40 back"]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "examples", *arguments],
        cwd=CHECKOUT,
        env={**os.environ, "DATABASE_URL": database_url()},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=100,
        check=False,
    )


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("name", SAYS)
def test_example_tells_its_story(name: str) -> None:
    done = run(name)
    assert done.returncode == 0, done.stdout
    rest = done.stdout
    for line in SAYS[name]:
        _before, found, rest = rest.partition(line)
        assert found, f"{line!r} does not come in its turn:\n{done.stdout}"
    for line in ONCE:
        assert done.stdout.count(line) <= 1, done.stdout


@pytest.mark.django_db(transaction=True)
def test_an_example_of_schedules_can_be_run_again() -> None:
    for _ in range(2):
        done = run("nightly_report")
        assert done.returncode == 0, done.stdout


def test_without_a_name_the_examples_are_listed() -> None:
    done = run()
    assert done.returncode == 2
    assert set(SAYS) <= set(done.stdout.split())


def test_an_unknown_name_is_said_to_be_unknown() -> None:
    done = run("helo")
    assert done.returncode == 2
    assert done.stdout.startswith("There is no example 'helo'. Did you mean hello?\n")
    assert "fan_out" in done.stdout.split()
    assert run("hello", "world").returncode == 2


def test_every_example_has_a_test() -> None:
    found = {path.stem for path in (CHECKOUT / "examples").glob("[a-z]*.py")}
    assert found == {*SAYS, "demo", "jobs", "settings"}
