"""Draining workers from their pages, from code and by the command."""

from __future__ import annotations

import json
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.test import Client

from django_durable import notifications, store
from django_durable.models import Worker
from tests.admin.conftest import StaffMaker
from tests.admin.world import act, logged, told, url
from tests.by_hand import beat, silence

pytestmark = pytest.mark.django_db


def draining() -> set[str]:
    return set(Worker.objects.filter(draining=True).values_list("name", flat=True))


def three() -> tuple[Worker, Worker, Worker]:
    """Make a worker that runs, one that was asked already, and one that is dead."""
    dead = beat(name="dead")
    silence(dead, timedelta(hours=1))
    return beat(name="one"), beat(name="asked", draining=True), dead


def test_draining_asks_first_then_asks_the_living_and_is_recorded(root: Client) -> None:
    workers = three()
    asked = act(root, "drain_selected", *workers, model="worker")
    page = asked.content.decode()
    for words in ("finishes what it runs, and ends", "was asked already", "is dead, left out"):
        assert words in page
    assert draining() == {"asked"}
    done = act(root, "drain_selected", *workers, model="worker", confirm="yes")
    assert told(done) == [
        ("success", "1 worker was asked to stop."),
        ("warning", "2 workers are dead or were asked already."),
    ]
    assert draining() == {"one", "asked"}
    assert logged() == [(str(workers[0].pk), "Asked to stop")]


def test_the_button_drains_one_worker_and_is_there_while_it_can_be(root: Client) -> None:
    worker, asked, dead = three()
    page = url("change", worker.pk, model="worker")
    assert url("drain", worker.pk, model="worker") in root.get(page).content.decode()
    assert root.get(url("drain", worker.pk, model="worker"), {"confirm": "yes"}).status_code == 200
    assert draining() == {"asked"}
    root.post(url("drain", worker.pk, model="worker"), {"confirm": "yes"})
    assert draining() == {"one", "asked"}
    for other in (worker, asked, dead):
        text = root.get(url("change", other.pk, model="worker")).content.decode()
        assert url("drain", other.pk, model="worker") not in text


def test_without_the_permission_nothing_is_offered_or_done(staff: StaffMaker) -> None:
    worker = beat(name="one")
    reader, stranger = staff("view_worker", "pause_queue"), staff("drain_worker")
    listed = reader.get(url("changelist", model="worker")).content.decode()
    assert "drain_selected" not in listed
    for client in (reader, stranger):
        refused = act(client, "drain_selected", worker, model="worker", confirm="yes")
        assert refused.status_code == 403
        one = client.post(url("drain", worker.pk, model="worker"), {"confirm": "yes"})
        assert one.status_code == 403
    assert not draining()
    allowed = staff("view_worker", "drain_worker")
    assert "drain_selected" in allowed.get(url("changelist", model="worker")).content.decode()
    act(allowed, "drain_selected", worker, model="worker", confirm="yes")
    assert draining() == {"one"}


def test_from_code_it_tells_whether_it_was_the_first_to_ask(
    monkeypatch: pytest.MonkeyPatch, django_capture_on_commit_callbacks: Any
) -> None:
    sent: list[tuple[str, list[str]]] = []
    monkeypatch.setattr(
        notifications, "notify", lambda _db, channel, topics: sent.append((channel, list(topics)))
    )
    worker = beat(name="one")
    with django_capture_on_commit_callbacks(execute=True):
        assert worker.drain() is True
        assert worker.draining
        assert worker.drain() is False
    assert sent == [(notifications.DRAIN, [str(worker.pk)])]


def test_the_next_heartbeat_tells_the_worker() -> None:
    worker = beat(name="one")
    worker.drain()
    card = {name: getattr(worker, name) for name in store.WorkerCard.__dataclass_fields__}
    assert store.beat(connection, store.WorkerCard(**card), draining=False)


def durable(*args: str) -> list[dict[str, Any]]:
    out = StringIO()
    call_command("durable", "workers", *args, "--json", stdout=out)
    found: list[dict[str, Any]] = json.loads(out.getvalue())
    return found


class TestCommand:
    def test_it_drains_by_name_or_incarnation_and_lists_whom(self) -> None:
        one, two = beat(name="one"), beat(name="two")
        beat(name="other")
        rows = durable("--drain", "one", "--drain", str(two.pk))
        assert {(row["name"], row["draining"], row["state"]) for row in rows} == {
            ("one", True, "draining"),
            ("two", True, "draining"),
        }
        assert {row["incarnation"] for row in rows} == {str(one.pk), str(two.pk)}
        assert draining() == {"one", "two"}
        assert len(durable()) == 3

    def test_a_name_that_no_living_worker_has_is_told_after_the_others_are_asked(self) -> None:
        silence(beat(name="dead"), timedelta(hours=1))
        beat(name="one")
        with pytest.raises(CommandError, match="no living worker is called 'dead'") as caught:
            call_command(
                "durable", "workers", "--drain", "dead", "--drain", "one", stdout=StringIO()
            )
        assert caught.value.returncode == 1
        assert draining() == {"one"}
