"""`manage.py durable schedules`."""

from __future__ import annotations

import json
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command

from django_durable.jobtypes import JobType
from django_durable.models import Schedule

pytestmark = pytest.mark.django_db


def run(*flags: str) -> str:
    out = StringIO()
    call_command("durable", "schedules", *flags, stdout=out, no_color=True)
    return out.getvalue()


def document() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(run("--json"))
    return found


def test_schedules_are_listed_for_machines(work: JobType) -> None:
    work.schedule("grid", every=timedelta(minutes=15), jitter=timedelta(seconds=5))
    row = work.schedule("nightly", cron="@daily", enabled=False)
    work.schedule("wrong", cron="@daily")
    Schedule.objects.filter(name="wrong").update(broken="no reason")
    grid, nightly, wrong = document()
    assert (grid["name"], grid["job_name"]) == ("grid", "scheduled.work")
    assert (grid["every"], grid["jitter"], grid["cron"]) == (900.0, 5.0, None)
    assert (grid["enabled"], grid["state"], grid["broken"]) == (True, "on", "")
    assert (nightly["enabled"], nightly["state"], nightly["cron"]) == (False, "off", "@daily")
    assert nightly["next_run_at"] == row.next_run_at.isoformat()
    assert (wrong["state"], wrong["broken"]) == ("broken", "no reason")


def test_schedules_are_listed_for_people(work: JobType) -> None:
    assert run() == "There is no schedule.\n"
    work.schedule("grid", every=timedelta(minutes=90))
    work.schedule("nightly", cron="@daily", timezone="Europe/Berlin")
    text = run()
    assert "every 1 h 30 m" in text
    assert "@daily (Europe/Berlin)" in text


def test_the_list_costs_one_query(work: JobType, django_assert_num_queries: Any) -> None:
    for number in range(20):
        work.schedule(f"s{number}", cron="@daily")
    with django_assert_num_queries(1):
        document()
