"""What an operator decides about a queue, from code and by the command."""

from __future__ import annotations

import json
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import transaction

from django_durable import job, notifications
from django_durable.models import Queue
from tests.by_hand import Hand

pytestmark = pytest.mark.django_db


@job(name="queued.work", queue_name="queued")
def work() -> None:
    """Do nothing."""


def durable(*args: str) -> tuple[Any, str]:
    """Run a subcommand; return its JSON document and what it says beside."""
    out, err = StringIO(), StringIO()
    call_command("durable", *args, "--json", stdout=out, stderr=err, no_color=True)
    return json.loads(out.getvalue()), err.getvalue()


def text(*args: str) -> str:
    out = StringIO()
    call_command("durable", *args, stdout=out, no_color=True)
    return out.getvalue()


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, tuple[str, ...]]]:
    """What workers are told, in place of telling them."""
    sent: list[tuple[str, tuple[str, ...]]] = []
    monkeypatch.setattr(
        notifications, "notify", lambda _db, channel, topics: sent.append((channel, tuple(topics)))
    )
    return sent


class TestFromCode:
    def test_a_queue_without_a_row_is_paused_and_resumed_by_name(self) -> None:
        hand = Hand(work.name)
        work.enqueue()
        assert Queue.objects.pause("queued") is True
        assert Queue.objects.pause("queued") is False
        assert Queue.objects.get().paused
        assert not hand.claim()
        assert Queue.objects.resume("queued") is True
        assert Queue.objects.resume("queued") is False
        assert hand.claim()

    def test_a_row_is_paused_and_resumed_and_keeps_its_limits(self) -> None:
        row = Queue.objects.create(name="queued", max_running=3)
        assert row.pause() is True
        assert (row.paused, Queue.objects.get().paused) == (True, True)
        assert row.pause() is False
        assert row.resume() is True
        assert (row.paused, Queue.objects.get().paused) == (False, False)
        assert Queue.objects.get().max_running == 3

    def test_a_pause_leaves_limits_alone_that_an_older_instance_does_not_know(self) -> None:
        row = Queue.objects.create(name="queued")
        Queue.objects.update(max_running=7)
        row.pause()
        assert row.max_running == Queue.objects.get().max_running == 7

    def test_a_pause_is_part_of_the_transaction(self) -> None:
        with transaction.atomic():
            Queue.objects.pause("queued")
            transaction.set_rollback(True)
        assert not Queue.objects.exists()

    def test_a_queue_that_was_never_paused_gets_no_row_by_a_resume(self) -> None:
        assert Queue.objects.resume("queued") is False
        assert not Queue.objects.exists()

    @pytest.mark.parametrize("name", ["", "n" * 101, "nul\x00", "\ud800"])
    def test_what_can_not_be_a_name_is_refused(self, name: str) -> None:
        with pytest.raises(ValueError, match="1 to 100 characters"):
            Queue.objects.pause(name)

    def test_workers_are_woken_after_the_commit_of_a_resume(
        self,
        told: list[tuple[str, tuple[str, ...]]],
        django_capture_on_commit_callbacks: Any,
    ) -> None:
        Queue.objects.pause("queued")
        with django_capture_on_commit_callbacks(execute=True):
            Queue.objects.resume("queued")
            assert not told
        assert told == [(notifications.READY, ("queued",))]


class TestLimits:
    def test_what_is_not_given_stays(self) -> None:
        Queue.objects.limit("queued", max_running=3)
        Queue.objects.limit("queued", rate_limit="5/s")
        Queue.objects.limit("queued")
        row = Queue.objects.get()
        assert (row.max_running, row.rate_limit, row.paused) == (3, "5/s", False)
        Queue.objects.limit("queued", max_running=None)
        row.refresh_from_db()
        assert (row.max_running, row.rate_limit) == (None, "5/s")

    @pytest.mark.parametrize(
        "limits", [{"max_running": -1}, {"max_running": 2**31}, {"rate_limit": "fast"}]
    )
    def test_wrong_limits_are_refused(self, limits: dict[str, Any]) -> None:
        with pytest.raises(ValueError, match=r"."):
            Queue.objects.limit("queued", **limits)
        assert not Queue.objects.exists()

    def test_another_name_is_no_limit(self) -> None:
        with pytest.raises(TypeError, match="no limit paused"):
            Queue.objects.limit("queued", paused=1)

    def test_workers_are_told(
        self,
        told: list[tuple[str, tuple[str, ...]]],
        django_capture_on_commit_callbacks: Any,
    ) -> None:
        with django_capture_on_commit_callbacks(execute=True):
            Queue.objects.limit("queued", max_running=3)
        assert told == [(notifications.READY, ("queued",))]


class TestCommand:
    def test_several_queues_are_paused_and_resumed(self) -> None:
        Queue.objects.pause("queued")
        document, said = durable("pause", "queued", "nowhere", "nowhere")
        assert document == [
            {"name": "queued", "paused": True, "changed": False},
            {"name": "nowhere", "paused": True, "changed": True},
        ]
        assert said.startswith("No job type, job or row names the queue 'nowhere'; ")
        assert said.count("\n") == 1
        assert set(Queue.objects.filter(paused=True).values_list("name", flat=True)) == {
            "queued",
            "nowhere",
        }
        document, said = durable("resume", "queued")
        assert document == [{"name": "queued", "paused": False, "changed": True}]
        assert not said

    @pytest.mark.parametrize("command", [["pause"], ["resume"], ["limit", "--max-running=3"]])
    def test_a_name_that_nothing_has_is_told_with_the_one_near_it(self, command: list[str]) -> None:
        _document, said = durable(*command, "queud", "queued", "default")
        assert said == ("No job type, job or row names the queue 'queud'; did you mean 'queued'?\n")

    def test_nothing_is_said_of_a_queue_whose_jobs_have_ended(self) -> None:
        work.using(queue_name="former").enqueue().cancel()
        assert durable("limit", "former", "--max-running=3")[1] == ""

    def test_people_read_what_came_of_it(self) -> None:
        assert text("pause", "queued") == "queued is paused.\n"
        assert text("pause", "queued") == "queued was paused already.\n"
        assert text("resume", "queued") == "queued is resumed.\n"
        assert text("resume", "queued") == "queued was not paused.\n"

    @pytest.mark.parametrize("names", [[], [""], ["queued", "n" * 101]])
    def test_wrong_usage_changes_nothing(self, names: list[str]) -> None:
        with pytest.raises(CommandError) as caught:
            call_command("durable", "pause", *names)
        if names:
            assert caught.value.returncode == 2
        assert not Queue.objects.exists()

    def test_the_status_shows_what_was_decided(self) -> None:
        Queue.objects.create(name="queued", paused=True, max_running=3, rate_limit="5/s")
        (row,) = [row for row in durable("status")[0]["queues"] if row["name"] == "queued"]
        assert (row["paused"], row["max_running"], row["rate_limit"]) == (True, 3, "5/s")
        assert "paused" in text("status")
        assert "3 at once, 5/s" in text("status")

    def test_limits_are_set_and_told(self) -> None:
        Queue.objects.pause("queued")
        document, _said = durable("limit", "queued", "mail", "--max-running", "3")
        assert document == [
            {"name": "mail", "paused": False, "max_running": 3, "rate_limit": None},
            {"name": "queued", "paused": True, "max_running": 3, "rate_limit": None},
        ]
        assert text("limit", "mail", "--rate-limit", "100/m") == "mail: 3 at once, 100/m\n"
        assert text("limit", "mail", "--max-running", "none") == "mail: 100/m\n"
        assert text("limit", "mail", "--rate-limit", "None") == "mail: no limit\n"

    @pytest.mark.parametrize(
        "flags",
        [
            [],
            ["--max-running", "-1"],
            ["--max-running", "few"],
            ["--max-running", str(2**31)],
            ["--rate-limit", "0/m"],
            ["--rate-limit", "fast"],
        ],
    )
    def test_wrong_limits_change_nothing(self, flags: list[str]) -> None:
        with pytest.raises(CommandError) as caught:
            call_command("durable", "limit", "queued", *flags)
        if not flags:
            assert caught.value.returncode == 2
        assert not Queue.objects.exists()
