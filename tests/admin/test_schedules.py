"""The pages of schedules: the form, the operations, and who may do what."""

from __future__ import annotations

from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_durable import job
from django_durable.models import Job, Schedule
from django_durable.schedules import NO_WORKER, NOT_DECLARED
from tests.admin.conftest import StaffMaker
from tests.admin.world import ESCAPED, SCRIPT, act, charge, hostile, logged, told, url

pytestmark = pytest.mark.django_db

FORM = {
    "job_name": "shown.charge",
    "name": "nightly",
    "cron": "30 2 * * *",
    "every": "",
    "timezone": "Europe/Berlin",
    "enabled": "on",
    "starts_at_0": "",
    "starts_at_1": "",
    "until_0": "",
    "until_1": "",
    "catch_up": "all",
    "overlap": "skip",
    "jitter": "30s",
    "args": "[1, 2]",
    "kwargs": '{"tenant": 7}',
}


@job(name="shown.idle")
def idle() -> None:
    """Take no arguments."""


@job(name="shown.needy")
def needy(what: str) -> None:
    """Need an argument."""


@job(name="shown.keyed", concurrency_key=lambda tenant: {}[tenant])
def keyed(tenant: str) -> None:
    """Have a key that can't be made."""


def add(client: Client, **changed: Any) -> Any:
    return client.post(url("add", model="schedule"), {**FORM, **changed})


def test_a_schedule_is_made_by_the_form(root: Client) -> None:
    assert add(root).status_code == 302
    row = Schedule.objects.get()
    assert (row.job_name, row.name, row.cron, row.every) == (
        "shown.charge",
        "nightly",
        "30 2 * * *",
        None,
    )
    assert (row.jitter, row.args, row.kwargs) == (timedelta(seconds=30), [1, 2], {"tenant": 7})
    assert row.next_run_at is not None
    assert not row.declared
    assert [text for _, text in logged()] == ["Added."]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"cron": "every day"}, "is not a cron expression"),
        ({"cron": "0 0 31 4 *"}, "31 4"),
        ({"cron": ""}, "has either cron or every"),
        ({"every": "15m"}, "has either cron or every"),
        ({"timezone": "Mars/Olympus"}, "is not a time zone"),
        ({"jitter": "2d"}, "jitter is from 0 on and shorter"),
        ({"args": "1"}, "Write JSON such as"),
        ({"args": "[1"}, "Write JSON such as"),
        ({"kwargs": "[]"}, "Write JSON such as"),
        ({"job_name": "no.such.type"}, "There is no job type of this name"),
        ({"cron": SCRIPT}, "is not a cron expression"),
    ],
)
def test_a_wrong_rule_is_an_error_of_the_form(
    root: Client, changed: dict[str, str], said: str
) -> None:
    response = add(root, **changed)
    assert response.status_code == 200
    assert said in response.content.decode()
    assert SCRIPT not in response.content.decode()
    assert not Schedule.objects.exists()


def test_the_form_takes_what_it_offers(root: Client) -> None:
    form = root.get(url("add", model="schedule")).context["adminform"].form
    assert (form["args"].value(), form["kwargs"].value()) == ("[]", "{}")
    offered = {"args": form["args"].value(), "kwargs": form["kwargs"].value()}
    assert add(root, **offered, job_name=hostile.name).status_code == 302
    row = Schedule.objects.get()
    assert (row.args, row.kwargs) == ([], {})


def test_all_errors_are_shown_at_once(root: Client) -> None:
    wrong = {"cron": "every day", "timezone": "Mars/Olympus", "args": "[1", "kwargs": "1"}
    form = add(root, **wrong).context["adminform"].form
    assert set(form.errors) == {"cron", "timezone", "args", "kwargs"}
    form = add(root, cron="", job_name="shown.idle", args="[1]").context["adminform"].form
    assert len(form.non_field_errors()) == 2


def test_labels_begin_alike(root: Client) -> None:
    form = root.get(url("add", model="schedule")).context["adminform"].form
    labels = [str(field.label) for field in form]
    assert labels == [label[0].upper() + label[1:] for label in labels]


def test_two_schedules_of_a_job_type_differ_in_name(root: Client) -> None:
    add(root)
    assert "already exists" in add(root).content.decode()


def test_a_changed_form_changes_the_next_run_and_keeps_the_payload(root: Client) -> None:
    row = charge.schedule("nightly", cron="@daily", kwargs={"since": timedelta(hours=2)})
    page = root.get(url("change", row.pk, model="schedule")).content.decode()
    assert "timedelta" in page
    stored = Schedule.objects.values("kwargs").get()
    fields = {**FORM, "cron": "", "every": "15m", "args": "", "kwargs": stored["kwargs"]}
    fields["kwargs"] = root.get(url("change", row.pk, model="schedule")).context[
        "adminform"
    ].form["kwargs"].value()  # fmt: skip
    response = root.post(url("change", row.pk, model="schedule"), fields)
    assert response.status_code == 302
    changed = Schedule.objects.get()
    assert (changed.cron, changed.every) == (None, timedelta(minutes=15))
    assert changed.kwargs == {"since": timedelta(hours=2)}
    assert changed.next_run_at != row.next_run_at


def test_turning_on_by_the_form_does_not_catch_up_and_keeps_the_counts(root: Client) -> None:
    add(root, enabled="")
    row = Schedule.objects.get()
    assert row.next_run_at is not None
    Schedule.objects.update(next_run_at=row.next_run_at - timedelta(days=8), skipped=5)
    root.post(url("change", row.pk, model="schedule"), {**FORM, "enabled": "on"})
    row = Schedule.objects.get()
    assert (row.enabled, row.skipped) == (True, 5)
    assert row.next_run_at is not None
    assert row.next_run_at > timezone.now()


def test_enable_disable_and_run_now_do_it_and_are_recorded(root: Client) -> None:
    row = charge.schedule("nightly", cron="@daily")
    act(root, "disable_selected", row, model="schedule")
    assert not Schedule.objects.get().enabled
    act(root, "enable_selected", row, model="schedule")
    assert Schedule.objects.get().enabled
    act(root, "run_now_selected", row, model="schedule")
    again = act(root, "run_now_selected", row, model="schedule")
    assert Job.objects.get().schedule == row
    assert told(again)[-1][0] == "warning"
    assert [text for _, text in logged()] == [
        "Disabled",
        "Enabled",
        f"Run now as job {Job.objects.get().pk}",
    ]


def test_running_a_schedule_whose_job_type_is_unknown_is_a_message(root: Client) -> None:
    row = Schedule.objects.create(job_name="gone", name="gone", cron="@daily")
    ((level, text),) = told(act(root, "run_now_selected", row, model="schedule"))
    assert level == "error"
    assert "gone" in text


def test_schedules_are_deleted_by_the_action(root: Client) -> None:
    row = charge.schedule("nightly", cron="@daily")
    act(root, "delete_selected", row, model="schedule", confirm="yes")
    assert not Schedule.objects.exists()


@pytest.mark.parametrize(
    ("action", "permission"),
    [
        ("enable_selected", "change_schedule"),
        ("disable_selected", "change_schedule"),
        ("run_now_selected", "change_schedule"),
        ("delete_selected", "delete_schedule"),
    ],
)
def test_each_action_has_its_permission(staff: StaffMaker, action: str, permission: str) -> None:
    row = charge.schedule("nightly", cron="@daily")
    reader = staff("view_schedule")
    assert action not in reader.get(url("changelist", model="schedule")).content.decode()
    assert act(reader, action, row, model="schedule", confirm="yes").status_code == 403
    assert Schedule.objects.get().enabled
    assert not Job.objects.exists()
    writer = staff("view_schedule", permission)
    assert act(writer, action, row, model="schedule", confirm="yes").status_code == 302


def test_adding_needs_its_permission(staff: StaffMaker) -> None:
    assert add(staff("view_schedule", "change_schedule")).status_code == 403
    assert add(staff("add_schedule", "view_payload", "view_schedule")).status_code == 302


def test_payloads_are_neither_shown_nor_taken_without_their_permission(staff: StaffMaker) -> None:
    row = charge.schedule("nightly", cron="@daily", kwargs={"secret": "the-secret"})
    client = staff("view_schedule", "change_schedule")
    assert "the-secret" not in client.get(url("change", row.pk, model="schedule")).content.decode()
    client.post(url("change", row.pk, model="schedule"), {**FORM, "kwargs": '{"own": 1}'})
    changed = Schedule.objects.get()
    assert (changed.cron, changed.kwargs) == ("30 2 * * *", {"secret": "the-secret"})


FEW = {name: text for name, text in FORM.items() if name not in ("args", "kwargs")}


@pytest.mark.parametrize("stored", ['["the-secret"]', "[1"])
def test_without_its_permission_arguments_are_kept_and_not_asked_for(
    staff: StaffMaker, stored: str
) -> None:
    row = needy.schedule("nightly", cron="@daily", args=["any"])
    with connection.cursor() as cursor:
        cursor.execute("UPDATE durable_schedule SET args = %s", [stored])
    client = staff("view_schedule", "change_schedule", "add_schedule")
    off = {**FEW, "job_name": "shown.needy", "enabled": ""}
    answer = client.post(url("change", row.pk, model="schedule"), off)
    assert answer.status_code == 302
    assert not Schedule.objects.get().enabled
    with connection.cursor() as cursor:
        cursor.execute("SELECT args, kwargs FROM durable_schedule")
        assert cursor.fetchall() == [(stored, "{}")]
    # Nor are they given, so that only what fits the row's own can be chosen.
    refused = [
        add(client, job_name="shown.needy", name="new", args='["own"]'),
        client.post(url("change", row.pk, model="schedule"), {**FEW, "job_name": "shown.idle"}),
    ]
    for answer in refused:
        assert "takes other arguments, which you may not see" in answer.content.decode()
        assert "the-secret" not in answer.content.decode()
    assert Schedule.objects.get().job_name == "shown.needy"
    assert add(client, job_name="shown.charge", name="new", args='["own"]').status_code == 302
    assert Schedule.objects.get(name="new").args == []
    # Who sees that they don't fit is told.
    privileged = staff("view_schedule", "change_schedule", "view_payload")
    answer = privileged.post(
        url("change", row.pk, model="schedule"), {**FORM, "job_name": "shown.needy", "args": "[]"}
    )
    assert "missing a required argument" in answer.content.decode()


@pytest.mark.parametrize("page", ["action", "button"])
@pytest.mark.parametrize("may_see", [False, True])
def test_run_now_says_what_users_code_raises_and_runs_the_others(
    staff: StaffMaker, page: str, *, may_see: bool
) -> None:
    bad = keyed.schedule("a", cron="@daily", kwargs={"tenant": "the-secret"})
    good = charge.schedule("b", cron="@daily")
    client = staff("view_schedule", "change_schedule", *(["view_payload"] if may_see else []))
    if page == "action":
        answer = act(client, "run_now_selected", bad, good, model="schedule")
    else:
        answer = client.post(url("run_now", bad.pk, model="schedule"), {"confirm": "yes"})
    assert answer.status_code == 302
    said = {text for level, text in told(answer) if level == "error"}
    assert said == {"shown.keyed a: KeyError" + (": 'the-secret'" if may_see else "")}
    assert [row.schedule for row in Job.objects.all()] == ([good] if page == "action" else [])
    assert len(logged()) == Job.objects.count()


@pytest.mark.parametrize(
    ("broken", "shown"),
    [
        ("shop.DeclinedError: the-secret", "broken: shop.DeclinedError<"),
        ("ValueError: the-secret: no", "broken: ValueError<"),
        ("it was not written: django.db.utils.IntegrityError: the-secret",
         "broken: django.db.utils.IntegrityError<"),
        ("[a class without a name]: the-secret", "broken: hidden: needs permission"),
        ("the-secret is wrong", "broken: hidden: needs permission"),
        (NO_WORKER, f"broken: {NO_WORKER}<"),
        (NOT_DECLARED, f"broken: {NOT_DECLARED}<"),
    ],
)  # fmt: skip
def test_what_a_schedule_is_broken_by_is_shown_without_its_message_where_payloads_are_not(
    staff: StaffMaker, broken: str, shown: str
) -> None:
    row = charge.schedule("nightly", cron="@daily")
    Schedule.objects.update(broken=broken)
    reader, privileged = staff("view_schedule"), staff("view_schedule", "view_payload")
    for page in (url("changelist", model="schedule"), url("change", row.pk, model="schedule")):
        text = reader.get(page).content.decode()
        assert "the-secret" not in text
        assert shown in text
        assert f"broken: {broken}<" in privileged.get(page).content.decode()


def test_what_is_wrong_with_a_rule_is_shown_to_whoever_sees_the_rule(staff: StaffMaker) -> None:
    row = charge.schedule("nightly", cron="@daily")
    Schedule.objects.update(cron="every day", broken="?")
    page = staff("view_schedule").get(url("change", row.pk, model="schedule")).content.decode()
    assert "is not a cron expression" in page


@pytest.mark.parametrize("column", ["starts_at", "until", "next_run_at", "last_run_at", "every"])
@pytest.mark.parametrize("sign", ["", "-"])
def test_what_python_can_not_hold_is_shown_and_mended(root: Client, column: str, sign: str) -> None:
    row = charge.schedule("one", every=timedelta(hours=1))
    value = "10000000 years" if column == "every" else "infinity"
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE durable_schedule SET {column} = %s", [sign + value])
    assert root.get(url("changelist", model="schedule")).status_code == 200
    call_command("durable", "schedules", stdout=StringIO())
    assert root.get(url("change", row.pk, model="schedule")).status_code == 200
    answer = root.post(
        url("change", row.pk, model="schedule"),
        {**FORM, "name": "one", "cron": "@hourly"},
    )
    assert answer.status_code == 302
    row = Schedule.objects.get()
    assert row.broken == ""
    assert row.next_run_at is not None
    assert row.next_run_at - timezone.now() < timedelta(hours=1)


def test_pages_escape_what_they_show(root: Client) -> None:
    row = hostile.schedule(SCRIPT, cron="@daily")
    Schedule.objects.update(broken=SCRIPT)
    for page in (url("changelist", model="schedule"), url("change", row.pk, model="schedule")):
        text = root.get(page).content.decode()
        assert SCRIPT not in text
        assert ESCAPED in text


def test_the_list_costs_the_same_queries_for_many_schedules(
    root: Client, django_assert_num_queries: Any
) -> None:
    charge.schedule("one", cron="@daily")
    with CaptureQueriesContext(
        connection,
    ) as few:
        root.get(url("changelist", model="schedule"))
    Schedule.objects.bulk_create(
        Schedule(job_name="shown.charge", name=f"s{n}", cron="@daily") for n in range(45)
    )
    with django_assert_num_queries(len(few)):
        root.get(url("changelist", model="schedule"))
