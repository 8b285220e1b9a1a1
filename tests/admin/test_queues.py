"""The pages of queues: the list and its counts, the form, pause and resume."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from django_durable.admin import queues
from django_durable.models import Job, Queue
from tests.admin.conftest import StaffMaker
from tests.admin.world import ESCAPED, SCRIPT, act, charge, logged, running, told, url

pytestmark = pytest.mark.django_db
LIST = "changelist"


def page(client: Client, name: str = LIST, *args: Any) -> str:
    answer = client.get(url(name, *args, model="queue"))
    assert answer.status_code == 200
    return answer.content.decode()


def test_queues_are_paused_and_resumed_and_both_are_recorded(root: Client) -> None:
    rows = [Queue.objects.create(name=name) for name in ("mail", "video")]
    Queue.objects.pause("video")
    done = act(root, "pause_selected", *rows, model="queue")
    assert told(done) == [("success", "1 queue was paused.")]
    assert Queue.objects.filter(paused=True).count() == 2
    done = act(root, "resume_selected", *rows, model="queue", confirm="yes")
    assert told(done)[-1:] == [("success", "2 queues were resumed.")]
    again = act(root, "resume_selected", rows[0], model="queue")
    assert told(again)[-1][0] == "warning"
    assert logged() == [("mail", "Paused"), ("mail", "Resumed"), ("video", "Resumed")]


@pytest.mark.parametrize("action", ["pause_selected", "resume_selected"])
def test_without_the_permission_the_action_is_absent_and_refused(
    staff: StaffMaker, action: str
) -> None:
    row = Queue.objects.create(name="mail", paused=action == "resume_selected")
    slug = action.removesuffix("_selected")
    others = staff("view_queue", "change_queue", "add_queue", "drain_worker")
    for client in (others, staff("pause_queue")):
        assert act(client, action, row, model="queue", confirm="yes").status_code == 403
        answer = client.post(url(slug, row.pk, model="queue"), {"confirm": "yes"})
        assert answer.status_code == 403
    assert action not in page(others)
    assert url(slug, row.pk, model="queue") not in page(others, "change", row.pk)
    assert Queue.objects.get().paused == row.paused
    assert not logged()
    allowed = staff("view_queue", "pause_queue")
    assert action in page(allowed)
    assert url(slug, row.pk, model="queue") in page(allowed, "change", row.pk)
    allowed.post(url(slug, row.pk, model="queue"), {"confirm": "yes"})
    assert Queue.objects.get().paused != row.paused


def test_the_list_tells_what_lies_in_each_queue(root: Client) -> None:
    Queue.objects.create(name="shown", max_running=7, rate_limit="100/m")
    running()
    first = charge.enqueue()
    charge.enqueue()
    Job.objects.filter(pk=first.pk).update(due_at=first.due_at - timedelta(minutes=90))
    text = page(root)
    for shown in (">2</a>", ">1</a>", "1 h 30 m", ">7<", "100/m"):
        assert shown in text, shown


def test_counts_of_a_page_stop_at_a_limit(root: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queues, "COUNTED", 3)
    Queue.objects.create(name="shown")
    charge.enqueue_many([((), {})] * 5)
    assert ">3+</a>" in page(root)


def test_queues_without_a_row_are_named_with_a_way_to_one(root: Client) -> None:
    charge.using(queue_name="a & b").enqueue()
    text = page(root)
    assert f'href="{url("add", model="queue")}?name=a+%26+b">a &amp; b</a>' in text
    form = root.get(url("add", model="queue"), {"name": "a & b"})
    assert 'value="a &amp; b"' in form.content.decode()
    Queue.objects.create(name="a & b")
    assert "?name=a+%26+b" not in page(root)


def test_the_list_costs_the_same_queries_for_many_queues(root: Client) -> None:
    def cost() -> int:
        with CaptureQueriesContext(connection) as queries:
            page(root)
        return len(queries)

    cost()
    Queue.objects.create(name="q")
    few = cost()
    for number in range(30):
        Queue.objects.create(name=f"q{number}")
        charge.using(queue_name=f"q{number}").enqueue()
        charge.using(queue_name=f"other{number}").enqueue()
    assert cost() == few


def test_limits_are_set_by_the_form(root: Client) -> None:
    made = root.post(
        url("add", model="queue"), {"name": "mail", "max_running": "5", "rate_limit": "100/m"}
    )
    assert made.status_code == 302
    row = Queue.objects.get()
    assert (row.name, row.max_running, row.rate_limit, row.paused) == ("mail", 5, "100/m", False)
    changed = {"max_running": "", "rate_limit": "", "name": "other", "paused": "on"}
    root.post(url("change", "mail", model="queue"), changed)
    row = Queue.objects.get()
    assert (row.name, row.max_running, row.rate_limit, row.paused) == ("mail", None, None, False)
    assert [key for key, _text in logged()] == ["mail", "mail"]
    assert "Maximum of running jobs" in logged()[1][1]


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ({"rate_limit": "fast"}, "is not a rate"),
        ({"rate_limit": "0/m"}, "is not a rate"),
        ({"rate_limit": SCRIPT}, "at most 20 characters"),
        ({"max_running": "-1"}, "greater than or equal to 0"),
        ({"max_running": "many"}, "whole number"),
        ({"max_running": str(2**31)}, "less than or equal to"),
        ({"name": "n" * 101}, "at most 100 characters"),
        ({"name": ""}, "required"),
        ({"name": "there"}, "already exists"),
    ],
)
def test_wrong_limits_are_errors_of_the_form(
    root: Client, limits: dict[str, str], said: str
) -> None:
    Queue.objects.create(name="there")
    answer = root.post(url("add", model="queue"), {"name": "mail", **limits})
    assert answer.status_code == 200
    assert said in answer.content.decode()
    assert Queue.objects.count() == 1


def test_a_changed_limit_leaves_a_pause_of_the_meantime_alone(root: Client) -> None:
    Queue.objects.create(name="mail", rate_limit="5/s")
    form = root.get(url("change", "mail", model="queue")).context["adminform"].form
    Queue.objects.pause("mail")
    root.post(url("change", "mail", model="queue"), {**form.initial, "max_running": "3"})
    row = Queue.objects.get()
    assert (row.paused, row.max_running, row.rate_limit) == (True, 3, "5/s")


def test_forms_need_django_s_permissions_and_nobody_deletes(
    staff: StaffMaker, root: Client
) -> None:
    Queue.objects.create(name="mail")
    reader = staff("view_queue", "pause_queue")
    assert reader.get(url("add", model="queue")).status_code == 403
    assert "?name=" not in page(reader)
    changed = reader.post(url("change", "mail", model="queue"), {"max_running": "3"})
    assert changed.status_code == 403
    assert root.post(url("delete", "mail", model="queue"), {"post": "yes"}).status_code == 403
    assert Queue.objects.get().max_running is None


def test_names_are_escaped(root: Client) -> None:
    Queue.objects.create(name=SCRIPT)
    charge.using(queue_name=f"{SCRIPT}2").enqueue()
    for text in (page(root), page(root, "change", SCRIPT.replace("/", "_2F"))):
        assert SCRIPT not in text
        assert ESCAPED in text
