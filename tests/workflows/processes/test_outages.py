"""The server crashes while workflows are rescued: none is lost, no recorded step runs again."""

from __future__ import annotations

import json
import signal
from collections import Counter
from typing import Any

import pytest

from testproject.embedded import Server
from tests.processes.harness import wait_for
from tests.processes.test_outages import Elsewhere

ENQUEUE = """
from tests.workerapp.tasks import three_steps
three_steps.enqueue_many([(({folder!r}, str(number)), {{}}) for number in range({count})])
"""


def crash_during_rescue(start: Any, server: Server, notes: Any, folder: str, count: int) -> None:
    there = Elsewhere(server)
    there.manage("shell", "-c", ENQUEUE.format(folder=folder, count=count))
    options = ("--queue-name=*", "--lease", "2s", "--concurrency", str(count))
    killed = start(*options, DATABASE_URL=there.url)
    wait_for("all to hold in their second step", lambda: len(notes.read("second")) == count)
    killed.send_all(signal.SIGKILL)
    rescuer = start(*options, DATABASE_URL=there.url)
    lost = "SELECT count(*) FROM durable_attempt WHERE outcome = 'lost'"
    wait_for("the first rescue", lambda: there.query(lost)[0][0] > 0)
    server.restart("immediate")
    notes.let_go()
    wait_for(
        "all to end",
        lambda: Counter(status for status, _ in there.statuses().values()) == {"SUCCESSFUL": count},
        60,
    )
    rescuer.stop()
    # Each call has drawn a number: a step that was called after its record would differ from it.
    recorded = {
        (label, name): json.loads(value)
        for label, name, value in there.query(
            "SELECT j.args::jsonb ->> 1, s.name, s.value"
            " FROM durable_step AS s JOIN durable_job AS j ON j.id = s.job_id"
        )
    }
    last_called = {
        (note["label"], note["event"]): note["number"]
        for event in ("first", "second", "third")
        for note in notes.read(event)
    }
    assert recorded == last_called
    assert len(recorded) == 3 * count
    assert Counter(note["label"] for note in notes.read("first")) == {
        str(number): 1 for number in range(count)
    }


def test_workflows_survive_a_crash_of_the_server_while_they_are_rescued(
    start: Any, private_server: Server, notes: Any, folder: str
) -> None:
    crash_during_rescue(start, private_server, notes, folder, 6)


@pytest.mark.stress
def test_30_workflows_survive_a_crash_of_the_server_while_they_are_rescued(
    start: Any, private_server: Server, notes: Any, folder: str
) -> None:
    crash_during_rescue(start, private_server, notes, folder, 30)
