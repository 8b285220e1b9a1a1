"""What code says of schedules: the decorator, `schedule(...)`, and what of it is refused."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from threading import Barrier
from typing import Any

import psycopg
import pytest
from django.core.checks import run_checks
from django.db import connection, connections, transaction
from django.test import override_settings

from django_durable import PayloadError, firing, job, schedule, store
from django_durable.inspection import problems
from django_durable.jobtypes import JobType, registry
from django_durable.models import Job, Schedule
from django_durable.schedules import NO_WORKER
from tests.schedules.conftest import At, look, nominal

HOUR = timedelta(hours=1)
START = datetime(2026, 5, 4, 12, tzinfo=UTC)


def rows() -> list[tuple[str, str, bool, str]]:
    found = Schedule.objects.order_by("job_name", "name")
    return list(found.values_list("job_name", "name", "declared", "broken"))


@pytest.mark.django_db
def test_declared_schedule_is_called_like_its_job_type_unless_it_has_a_name() -> None:
    @schedule(cron="0 9 * * 1-5", timezone="Europe/Berlin", catch_up="all", overlap="skip",
              jitter=timedelta(seconds=30))  # fmt: skip
    @schedule(every=HOUR, name="hourly", kwargs={"tenant": 3})
    @job(name="reports.daily")
    def daily(tenant: int | None = None) -> None: ...

    firing.reconcile(registry.names())

    assert rows() == [
        ("reports.daily", "hourly", True, ""),
        ("reports.daily", "reports.daily", True, ""),
    ]
    hourly, row = Schedule.objects.order_by("name")
    assert (row.cron, row.every, row.timezone) == ("0 9 * * 1-5", None, "Europe/Berlin")
    assert (row.catch_up, row.overlap, row.jitter) == ("all", "skip", timedelta(seconds=30))
    assert (hourly.cron, hourly.every, hourly.timezone) == (None, HOUR, "UTC")
    assert (hourly.args, hourly.kwargs) == ([], {"tenant": 3})
    assert (hourly.catch_up, hourly.overlap, hourly.enabled) == ("one", "allow", True)


@override_settings(TIME_ZONE="Asia/Kathmandu")
@pytest.mark.django_db
def test_time_zone_is_the_projects_unless_given(work: JobType) -> None:
    assert work.schedule("nightly", cron="@daily").timezone == "Asia/Kathmandu"
    assert Schedule().timezone == "Asia/Kathmandu"


WRONG: list[dict[str, Any]] = [
    {},
    {"cron": "@daily", "every": HOUR},
    {"cron": "* * * *"},
    {"cron": "0 0 31 4 *"},
    {"cron": "R * * * *"},
    {"cron": 5},
    {"cron": "@daily", "timezone": "Mars/Olympus"},
    {"every": HOUR, "timezone": "Mars/Olympus"},
    {"every": timedelta(0)},
    {"every": 60},
    {"every": HOUR, "catch_up": "some"},
    {"every": HOUR, "catch_up": None},
    {"every": HOUR, "overlap": "wait"},
    {"every": HOUR, "jitter": HOUR},
    {"every": HOUR, "jitter": timedelta(seconds=-1)},
    {"every": HOUR, "starts_at": datetime(2026, 1, 1)},  # noqa: DTZ001
    {"every": HOUR, "starts_at": "2026-01-01"},
    {"every": HOUR, "until": datetime(2026, 1, 1)},  # noqa: DTZ001
    {"every": HOUR, "starts_at": START, "until": START - HOUR},
    {"every": HOUR, "args": "one"},
    {"every": HOUR, "kwargs": ["tenant"]},
    {"every": HOUR, "name": ""},
    {"cron": f"0 0 {'1,' * 130}1 * *"},
    {"every": HOUR, "run_on_create": "yes"},
    {"every": HOUR, "run_on_create": None},
]


@pytest.mark.parametrize("rule", WRONG, ids=str)
def test_wrong_rule_is_refused_where_it_is_written(work: JobType, rule: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        schedule(**rule)(work)
    if "name" not in rule:
        with pytest.raises(ValueError):
            work.schedule("wrong", **rule)
    assert work.schedules == []


def test_what_is_no_rule_or_does_not_fit_the_function_is_a_type_error(work: JobType) -> None:
    with pytest.raises(TypeError, match=r"unknown options: enabled, when; it takes .*, name,"):
        schedule(every=HOUR, when="now", enabled=True)(work)
    with pytest.raises(TypeError, match=r"unknown options: when; it takes .*, enabled, every,"):
        work.schedule("x", every=HOUR, when="now")
    with pytest.raises(ValueError, match="enabled is True, False or None"):
        work.schedule("x", every=HOUR, enabled="no")
    with pytest.raises(TypeError, match="tenants"):
        schedule(every=HOUR, kwargs={"tenants": 1})(work)
    with pytest.raises(PayloadError):
        schedule(every=HOUR, args=[object()])(work)
    with pytest.raises(TypeError, match="above @job"):
        schedule(every=HOUR)(lambda: None)  # type: ignore[arg-type]
    schedule(every=HOUR)(work)
    with pytest.raises(ValueError, match="another name="):
        schedule(every=2 * HOUR)(work)


def test_the_decorator_needs_no_app_registry() -> None:
    code = (
        "from datetime import timedelta\nfrom django_durable import job, schedule\n"
        "import django.apps\nassert not django.apps.apps.ready\nprint(schedule)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


@pytest.mark.django_db
def test_schedule_at_run_time_is_one_row_for_a_name_and_says_what_the_latest_call_says(
    work: JobType, at: At
) -> None:
    at(2026, 5, 4, 12)
    first = work.schedule(
        "tenant-7", every=timedelta(minutes=15), kwargs={"tenant": 7}, until=START
    )
    second = work.schedule("tenant-7", cron="@hourly")

    assert first.pk == second.pk
    assert (second.cron, second.every, second.until, second.kwargs) == ("@hourly", None, None, {})
    assert second.next_run_at == START + HOUR
    assert rows() == [("scheduled.work", "tenant-7", False, "")]


@pytest.mark.django_db
def test_upsert_leaves_to_operators_what_they_turned_off(work: JobType) -> None:
    row = work.schedule("nightly", cron="@daily")
    row.disable()
    assert not work.schedule("nightly", cron="@hourly").enabled
    assert work.schedule("nightly", cron="@hourly", enabled=True).enabled
    assert not work.schedule("nightly", cron="@hourly", enabled=False).enabled
    assert not work.schedule("other", cron="@hourly", enabled=False).enabled


@pytest.mark.django_db
def test_reconciling_again_changes_nothing_and_keeps_what_was_edited(work: JobType) -> None:
    schedule(every=HOUR)(work)
    firing.reconcile(registry.names())
    Schedule.objects.update(every=2 * HOUR, enabled=False)

    firing.reconcile(registry.names())

    row = Schedule.objects.get()
    assert (row.every, row.enabled) == (2 * HOUR, False)


@pytest.mark.parametrize("written", [False, True])
@pytest.mark.django_db
def test_a_declaration_that_the_database_refuses_is_told_once_and_stops_no_other(
    work: JobType, at: At, caplog: pytest.LogCaptureFixture, *, written: bool
) -> None:
    at(2026, 5, 4, 12, 30)
    if written:
        schedule(name="bad", cron="@hourly")(work)
        firing.reconcile(registry.names())
        work.schedules.clear()
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE durable_schedule ADD CHECK (cron <> '1 1 1 1 *')")
    schedule(name="bad", cron="1 1 1 1 *")(work)
    schedule(name="good", cron="@hourly")(work)
    for _ in range(2):
        caplog.clear()
        firing.reconcile(registry.names())
        at(2026, 5, 4, 13, 0, 1)
        look()
        assert [record.getMessage() for record in caplog.records] == [
            "The schedule 'bad' of scheduled.work is declared as the database does not take it"
        ]
    (*_, broken), good = rows()
    assert broken.startswith("it was not written: django.db.utils.IntegrityError: ")
    assert good == ("scheduled.work", "good", True, "")
    assert nominal(Schedule.objects.get(name="good")) == ["04 13:00:00"]
    assert any("'bad'" in sentence for sentence in problems(min_workers=0))

    work.schedules[0] = replace(work.schedules[0], cron="@daily")
    firing.reconcile(registry.names())
    row = Schedule.objects.get(name="bad")
    assert (row.cron, row.broken, row.declared) == ("@daily", "", True)
    assert row.next_run_at == START + 12 * HOUR


@pytest.mark.django_db
def test_a_first_run_that_breaks_the_transaction_stops_no_other_declaration(at: At) -> None:
    def key() -> str:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1 / 0")
        raise AssertionError

    @schedule(name="bad", cron="@hourly", run_on_create=True)
    @schedule(name="good", cron="@hourly")
    @job(name="scheduled.keyed", concurrency_key=key)
    def keyed() -> None: ...

    at(2026, 5, 4, 12, 30)
    firing.reconcile(registry.names())
    (*_, bad), good = rows()
    assert "division by zero" in bad
    assert good == ("scheduled.keyed", "good", True, "")


@pytest.mark.django_db
def test_changed_declaration_changes_its_row_and_keeps_the_switch(work: JobType) -> None:
    schedule(every=HOUR)(work)
    firing.reconcile(registry.names())
    before = Schedule.objects.get()
    before.disable()
    work.schedules.clear()
    schedule(cron="@daily")(work)

    firing.reconcile(registry.names())

    row = Schedule.objects.get()
    assert (row.pk, row.every, row.cron, row.enabled) == (before.pk, None, "@daily", False)


@pytest.mark.django_db
def test_schedule_that_is_declared_no_longer_stops_and_comes_back_without_catching_up(
    work: JobType, at: At
) -> None:
    at(2026, 5, 4, 12, 0, 1)
    schedule(cron="@hourly", catch_up="all")(work)
    firing.reconcile(registry.names())
    declared = work.schedules.copy()
    work.schedules.clear()
    firing.reconcile(registry.names())
    assert rows() == [
        ("scheduled.work", "scheduled.work", False, "it is no longer declared in the code")
    ]

    at(2026, 5, 4, 15, 30)
    assert look() == 0
    work.schedules.extend(declared)
    firing.reconcile(registry.names())

    assert look() == 0
    assert rows() == [("scheduled.work", "scheduled.work", True, "")]
    at(2026, 5, 4, 16, 0, 1)
    assert look() == 1


@pytest.mark.django_db
def test_workers_leave_schedules_alone_whose_job_type_they_do_not_know(work: JobType) -> None:
    schedule(every=HOUR)(work)
    firing.reconcile(registry.names())
    firing.reconcile(["another.type"])
    assert rows() == [("scheduled.work", "scheduled.work", True, "")]
    assert look("another.type") == 0
    assert look("scheduled.work") == 1


@pytest.mark.django_db
def test_schedules_made_at_run_time_or_in_the_admin_are_not_reconciled_away(work: JobType) -> None:
    work.schedule("tenant-1", every=HOUR)
    Schedule.objects.create(job_name="scheduled.work", name="by hand", every=HOUR)
    firing.reconcile(registry.names())
    assert [broken for *_, broken in rows()] == ["", ""]
    assert look() == 2


@pytest.mark.django_db
def test_schedules_follow_their_renamed_job_type(work: JobType, at: At) -> None:
    at(2026, 5, 4, 12, 0, 1)
    schedule(cron="@hourly")(work)
    firing.reconcile(registry.names())
    made = work.schedule("tenant-1", cron="@hourly")
    declared = Schedule.objects.get(name="scheduled.work")
    registry.remove(work)

    @schedule(cron="@hourly")
    @job(name="renamed.work", aliases=["scheduled.work"])
    def renamed(tenant: int = 0) -> None: ...

    firing.reconcile(registry.names())
    at(2026, 5, 4, 13, 0, 1)
    look()

    assert set(Job.objects.values_list("name", "schedule")) == {
        ("renamed.work", made.pk),
        ("renamed.work", declared.pk),
    }
    declared.refresh_from_db()
    assert (declared.job_name, declared.name, declared.declared) == (
        "renamed.work",
        "renamed.work",
        True,
    )
    assert renamed.schedule("tenant-1", cron="@daily").pk == made.pk


@pytest.fixture
def somebody(transactional_db: None) -> Iterator[psycopg.Connection[Any]]:
    """The open transaction of somebody else, rolled back in the end."""
    params = {k: v for k, v in connection.get_connection_params().items() if k != "cursor_factory"}
    with psycopg.connect(**params) as other:
        yield other
        other.rollback()


def reconcile_within(seconds: float, left: Sequence[firing.Duty] | None = None) -> Any:
    started = time.monotonic()
    left = firing.reconcile(registry.names(), left)
    assert time.monotonic() - started < seconds
    return left


@pytest.mark.parametrize("change", ["write", "stop", "plan"])
def test_a_row_that_somebody_holds_delays_nothing_but_itself(
    work: JobType,
    somebody: psycopg.Connection[Any],
    monkeypatch: pytest.MonkeyPatch,
    change: str,
) -> None:
    # What it leaves is what is held, not what it had no time for.
    monkeypatch.setattr(firing, "TIME", 60.0)
    schedule(name="held", cron="@hourly")(work)
    schedule(name="gone", cron="@hourly")(work)
    assert reconcile_within(5) == []
    work.schedules.clear()
    if change != "stop":
        schedule(name="held", cron="@daily" if change == "write" else "@hourly")(work)
    if change == "plan":
        Schedule.objects.filter(name="held").update(broken="by what has passed")
    schedule(name="new", cron="@hourly")(work)
    somebody.execute("SELECT FROM durable_schedule WHERE name = 'held' FOR UPDATE")
    before = Schedule.objects.get(name="held")

    left = reconcile_within(1)
    assert len(left) == 1
    left = reconcile_within(1, left)
    assert len(left) == 1
    assert Schedule.objects.filter(name="new", broken="").exists()
    assert not Schedule.objects.get(name="gone").declared
    after = Schedule.objects.get(name="held")
    assert (after.cron, after.declared, after.broken) == (
        before.cron, before.declared, before.broken
    )  # fmt: skip

    somebody.rollback()
    assert reconcile_within(5, left) == []
    held = Schedule.objects.get(name="held")
    assert (held.cron, held.declared, held.broken) == {
        "write": ("@daily", True, ""),
        "stop": ("@hourly", False, "it is no longer declared in the code"),
        "plan": ("@hourly", True, ""),
    }[change]


def test_a_row_that_somebody_is_just_making_delays_nothing_but_itself(
    work: JobType, somebody: psycopg.Connection[Any]
) -> None:
    schedule(name="held", cron="@hourly")(work)
    schedule(name="new", cron="@hourly")(work)
    somebody.execute(
        "INSERT INTO durable_schedule (job_name, name, cron, timezone)"
        " VALUES ('scheduled.work', 'held', '@daily', 'UTC')"
    )
    left = reconcile_within(1)
    assert [row[1] for row in rows()] == ["new"]
    somebody.rollback()
    assert reconcile_within(5, left) == []
    assert [row[1] for row in rows()] == ["held", "new"]


def test_a_worker_that_reconciles_is_not_waited_for(
    work: JobType, somebody: psycopg.Connection[Any]
) -> None:
    """It may be frozen; the server ends its transaction then."""
    limits: list[str] = []

    def key(tenant: int = 0) -> str:
        with connection.cursor() as cursor:
            cursor.execute("SELECT current_setting('idle_in_transaction_session_timeout')")
            limits.extend(cursor.fetchone())
        return "key"

    keyed = job(name="scheduled.keyed", concurrency_key=key)(lambda tenant=0: None)
    schedule(name="new", cron="@hourly", run_on_create=True)(keyed)
    namespace = store.enqueueing.LOCK_NAMESPACE + store.scheduling.LOCK_DECLARATIONS
    somebody.execute("SELECT pg_advisory_xact_lock(%s, 0)", [namespace])
    assert reconcile_within(1) is None
    somebody.rollback()
    assert reconcile_within(5) == []
    assert limits == ["30s"]


def test_a_look_waits_for_no_row_that_somebody_holds(
    work: JobType, somebody: psycopg.Connection[Any]
) -> None:
    for name, broken in (("mended", NO_WORKER), ("due", ""), ("edited", "")):
        Schedule.objects.create(job_name="scheduled.work", name=name, every=HOUR)
        Schedule.objects.filter(name=name).update(broken=broken)
    Schedule.objects.filter(name="edited").update(every=2 * HOUR)
    Schedule.objects.create(job_name="nobody.knows", name="unknown", every=HOUR)
    somebody.execute("SELECT FROM durable_schedule FOR UPDATE")
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL lock_timeout TO '1s'")
        firing.mark_unknown()
        # None of it can be had, so there is no use in looking again at once.
        assert firing.run_due(registry.names()) is None
    somebody.rollback()
    firing.mark_unknown()
    assert look() == 3
    assert Schedule.objects.get(name="unknown").broken == NO_WORKER


@pytest.mark.django_db
def test_reconciling_takes_a_moment_and_goes_on_with_the_others(
    work: JobType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(firing, "TIME", 0.0)
    for name in ("one", "two", "three"):
        schedule(name=name, cron="@hourly")(work)
    left: Any = None
    for count in (1, 2, 3):
        left = firing.reconcile(registry.names(), left)
        assert (len(left), Schedule.objects.count()) == (3 - count, count)


@pytest.mark.django_db(transaction=True)
def test_many_workers_that_start_at_once_make_one_row_of_a_declaration(work: JobType) -> None:
    schedule(every=HOUR, run_on_create=True)(work)
    barrier = Barrier(8)

    def start(_: int) -> None:
        left: Sequence[firing.Duty] | None = None
        try:
            barrier.wait()
            while left is None or left:
                left = firing.reconcile(registry.names(), left)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(start, range(8)))

    assert Schedule.objects.count() == 1


@override_settings(USE_TZ=False)
def test_a_project_without_time_zones_is_refused_by_a_check() -> None:
    assert "durable.E013" in {message.id for message in run_checks(tags=["durable"])}


@pytest.mark.django_db
def test_moments_in_other_zones_are_the_moments_that_they_are(work: JobType, at: At) -> None:
    at(2026, 5, 4, 11, 30)
    plus_two = timezone(timedelta(hours=2))
    row = work.schedule("hours", every=HOUR, starts_at=datetime(2026, 5, 4, 14, tzinfo=plus_two))
    at(2026, 5, 4, 13, 0, 1)
    look()
    assert nominal(row) == ["04 13:00:00"]


@pytest.mark.django_db
def test_a_schedule_that_moves_from_the_code_to_a_call_goes_on(work: JobType) -> None:
    schedule(name="kept", every=HOUR)(work)
    schedule(name="moved", every=HOUR)(work)
    firing.reconcile(registry.names())
    del work.schedules[1]
    # As the new code does before its workers start.
    for name in ("kept", "moved"):
        work.schedule(name, every=HOUR)

    firing.reconcile(registry.names())

    assert rows() == [("scheduled.work", "kept", True, ""), ("scheduled.work", "moved", False, "")]


@pytest.mark.django_db
def test_a_worker_stops_late_only_what_is_still_undeclared(work: JobType) -> None:
    schedule(name="moved", every=HOUR)(work)
    firing.reconcile(registry.names())
    work.schedules.clear()
    duties = list(firing._duties(registry.names(), list(Schedule.objects.all())))
    work.schedule("moved", every=HOUR)

    firing.reconcile(registry.names(), duties)

    assert rows() == [("scheduled.work", "moved", False, "")]
