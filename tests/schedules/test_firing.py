"""When schedules make jobs: each sentence of the contract, by the one clock."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import Error, IntegrityError, OperationalError, connection, transaction
from django.db.models import F

from django_durable import UnknownJob, firing, job, store
from django_durable.jobtypes import JobType, registry
from django_durable.models import DeadLetter, Job, Schedule
from tests.by_hand import Hand, beat
from tests.schedules.conftest import At, end_jobs, look, nominal

pytestmark = pytest.mark.django_db

SECOND, MINUTE, HOUR = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)


def moment(hour: int, minute: int = 0, second: int = 0) -> datetime:
    return datetime(2026, 5, 4, hour, minute, second, tzinfo=UTC)


def reread(row: Schedule) -> Schedule:
    return Schedule.objects.get(pk=row.pk)


def test_cron_first_runs_at_its_next_tick_and_every_at_once(work: JobType, at: At) -> None:
    at(2026, 5, 4, 12, 20)
    by_cron = work.schedule("cron", cron="@hourly")
    by_grid = work.schedule("grid", every=HOUR)
    assert look() == 1
    assert by_grid.jobs.get().scheduled_for - moment(12, 20) < 5 * SECOND
    assert by_cron.next_run_at == moment(13)


def test_job_of_a_tick_has_the_arguments_the_schedule_and_the_nominal_time(
    work: JobType, at: At
) -> None:
    at(2026, 5, 4, 12, 59)
    row = work.schedule("cron", cron="@hourly", kwargs={"tenant": 7})
    at(2026, 5, 4, 13, 0, 2)
    look()
    made = Job.objects.get()
    assert (made.name, made.kwargs, made.schedule) == ("scheduled.work", {"tenant": 7}, row)
    assert made.scheduled_for == moment(13)
    assert made.run_after == made.enqueued_at > moment(13, 0, 2)
    row = reread(row)
    assert (row.last_run_at, row.next_run_at) == (moment(13), moment(14))


def test_every_keeps_to_the_grid_of_its_first_run(work: JobType, at: At) -> None:
    at(2026, 5, 4, 12)
    row = work.schedule("grid", every=15 * MINUTE)
    look()
    first = row.jobs.get().scheduled_for
    at(2026, 5, 4, 12, 47)
    look()
    at(2026, 5, 4, 13, 1)
    look()
    times = row.jobs.order_by("scheduled_for").values_list("scheduled_for", flat=True)
    assert [time - first for time in times] == [0 * MINUTE, 45 * MINUTE, 60 * MINUTE]


def test_every_keeps_to_the_grid_of_starts_at_and_a_tick_at_it_runs(work: JobType, at: At) -> None:
    at(2026, 5, 4, 12, 0, 30)
    later = work.schedule("later", every=10 * MINUTE, starts_at=moment(12, 5))
    earlier = work.schedule("earlier", every=10 * MINUTE, starts_at=moment(9, 7))
    assert look() == 0
    at(2026, 5, 4, 12, 7, 1)
    look()
    assert nominal(later) == ["04 12:05:00"]
    assert nominal(earlier) == ["04 12:07:00"]


@pytest.mark.parametrize("rule", [{"cron": "*/5 * * * *"}, {"every": 10 * MINUTE}])
def test_a_tick_of_bulk_created_schedules_is_not_lost_before_a_worker_looks(
    work: JobType, at: At, rule: dict[str, Any]
) -> None:
    at(2026, 5, 4, 12, 30)
    Schedule.objects.bulk_create(
        [
            Schedule(
                job_name="scheduled.work",
                name=name,
                starts_at=starts_at,
                until=moment(12, 45),
                catch_up="all",
                **rule,
            )
            for name, starts_at in (("soon", moment(12, 35)), ("before", moment(12, 20)))
        ]
        + [Schedule(job_name="scheduled.work", name="wrong", cron="wrong")]
    )
    at(2026, 5, 4, 13, 0)
    look()
    step = rule.get("every", 5 * MINUTE)
    soon, before, wrong = (Schedule.objects.get(name=n) for n in ("soon", "before", "wrong"))
    assert nominal(soon) == [f"04 12:{minute}:00" for minute in range(35, 46, int(step / MINUTE))]
    assert nominal(before)[0] == ("04 12:40:00" if "every" in rule else "04 12:35:00")
    assert wrong.broken


def test_run_exactly_at_until_happens_and_later_ones_do_not(work: JobType, at: At) -> None:
    at(2026, 5, 4, 12, 30)
    row = work.schedule("cron", cron="@hourly", until=moment(14), catch_up="all")
    at(2026, 5, 4, 18, 0, 1)
    look()
    assert nominal(row) == ["04 13:00:00", "04 14:00:00"]
    assert reread(row).next_run_at is None
    assert reread(row).preview() == []


@pytest.mark.parametrize(
    ("catch_up", "expected"),
    [
        ("skip", ["04 18:00:00"]),
        ("one", ["04 17:00:00", "04 18:00:00"]),
        ("all", ["04 13:00:00", "04 14:00:00", "04 15:00:00", "04 16:00:00", "04 17:00:00",
                 "04 18:00:00"]),
    ],
)  # fmt: skip
def test_after_five_hours_without_workers_missed_ticks_run_as_catch_up_says(
    work: JobType, at: At, catch_up: str, expected: list[str]
) -> None:
    at(2026, 5, 4, 12, 30)
    row = work.schedule("hourly", cron="@hourly", catch_up=catch_up)
    at(2026, 5, 4, 17, 30)
    look()
    at(2026, 5, 4, 18, 0, 1)
    look()
    assert nominal(row) == expected


def test_the_newest_tick_counts_as_missed_when_it_is_over_a_minute_late(
    work: JobType, at: At
) -> None:
    at(2026, 5, 4, 12, 30)
    row = work.schedule("hourly", cron="@hourly", catch_up="skip")
    at(2026, 5, 4, 13, 0, 58)
    look()
    at(2026, 5, 4, 14, 1, 1)
    look()
    assert nominal(row) == ["04 13:00:00"]
    assert reread(row).skipped == 0


def test_overlap_skip_skips_while_the_job_of_the_tick_before_has_not_ended(
    work: JobType, at: At
) -> None:
    at(2026, 5, 4, 12, 30)
    row = work.schedule("hourly", cron="@hourly", overlap="skip")
    for hour in (13, 14, 15):
        at(2026, 5, 4, hour, 0, 1)
        look()
    assert nominal(row) == ["04 13:00:00"]
    assert (reread(row).skipped, reread(row).last_skipped_at) == (2, moment(15))
    assert reread(row).last_run_at == moment(13)

    end_jobs()
    at(2026, 5, 4, 16, 0, 1)
    look()
    assert nominal(row) == ["04 13:00:00", "04 16:00:00"]


def test_overlap_skip_counts_while_catching_up_too(work: JobType, at: At) -> None:
    at(2026, 5, 4, 12, 30)
    row = work.schedule("hourly", cron="@hourly", overlap="skip", catch_up="all")
    at(2026, 5, 4, 15, 30)
    look()
    assert nominal(row) == ["04 13:00:00"]
    assert (reread(row).skipped, reread(row).last_skipped_at) == (2, moment(15))


def test_overlap_allow_runs_beside(work: JobType, at: At) -> None:
    at(2026, 5, 4, 12, 30)
    row = work.schedule("hourly", cron="@hourly")
    for hour in (13, 14):
        at(2026, 5, 4, hour, 0, 1)
        look()
    assert len(nominal(row)) == 2


def test_jitter_moves_each_run_around_its_tick_and_never_adds_up(work: JobType, at: At) -> None:
    at(2026, 5, 4, 0, 30)
    row = work.schedule("hourly", cron="@hourly", jitter=10 * MINUTE)
    for hour in range(20):
        # The run may lie before the tick, so its job is there before.
        at(2026, 5, 4, hour, 50, 1)
        assert look() == 1
    made = list(row.jobs.order_by("scheduled_for"))
    assert [one.scheduled_for for one in made] == [moment(hour) for hour in range(1, 21)]
    moved = [one.run_after - one.scheduled_for for one in made]
    assert all(-10 * MINUTE <= by <= 10 * MINUTE for by in moved)
    assert len(set(moved)) == 20
    # All on one side by chance: once in half a million.
    assert min(moved) < timedelta(0) < max(moved)


def test_run_on_create_runs_once_when_the_schedule_is_made(work: JobType, at: At) -> None:
    at(2026, 5, 4, 12, 30)
    row = work.schedule("daily", cron="@daily", run_on_create=True)
    assert look() == 0
    assert row.jobs.get().scheduled_for - moment(12, 30) < 5 * SECOND
    assert row.next_run_at == moment(0) + timedelta(days=1)
    work.schedule("daily", cron="@hourly", run_on_create=True)
    assert row.jobs.count() == 1
    grid = work.schedule("grid", every=HOUR, run_on_create=True)
    look()
    assert grid.jobs.count() == 1


@pytest.mark.parametrize("rule", [{"cron": "@daily"}, {"every": HOUR}])
def test_a_schedule_that_is_made_disabled_runs_nothing_on_create(
    work: JobType, at: At, rule: dict[str, Any]
) -> None:
    at(2026, 5, 4, 12, 30)
    row = work.schedule("off", run_on_create=True, enabled=False, **rule)
    assert (look(), row.enabled, reread(row).enabled) == (0, False, False)
    work.schedule("off", run_on_create=True, **rule)
    row.enable()
    assert not row.jobs.exists()


@pytest.mark.parametrize(
    ("rule", "jobs"),
    [
        ({"starts_at": moment(15)}, 0),
        ({"starts_at": moment(9)}, 1),
        ({"until": moment(12)}, 0),
        ({"until": moment(20)}, 1),
    ],
)
def test_run_on_create_keeps_to_the_limits_of_the_rule(
    work: JobType, at: At, rule: dict[str, Any], jobs: int
) -> None:
    at(2026, 5, 4, 12, 30)
    row = work.schedule("daily", cron="@hourly", run_on_create=True, **rule)
    look()
    assert row.jobs.count() == jobs


def test_run_on_create_of_a_row_made_elsewhere_is_done_by_a_worker(work: JobType, at: At) -> None:
    at(2026, 5, 4, 12, 30)
    registry.remove(work)
    row = Schedule.objects.create(
        job_name="scheduled.work", name="daily", cron="@daily", run_on_create=True
    )
    assert not row.jobs.exists()
    registry.add(work)
    look()
    look()
    assert row.jobs.count() == 1


def test_run_now_makes_one_job_while_it_is_pending(work: JobType, at: At) -> None:
    at(2026, 5, 4, 12, 30)
    row = work.schedule("daily", cron="@daily", kwargs={"tenant": 7})
    before = reread(row)
    made = row.run_now()
    again = row.run_now()
    assert (made.created, again.created, again.pk) == (True, False, made.pk)
    assert (made.schedule, made.kwargs) == (row, {"tenant": 7})
    assert made.scheduled_for is not None
    assert made.scheduled_for - moment(12, 30) < 5 * SECOND
    after = reread(row)
    assert (after.next_run_at, after.last_run_at) == (before.next_run_at, before.last_run_at)

    hand = Hand("scheduled.work")
    hand.take()
    assert row.run_now().pk != made.pk


def test_run_now_works_while_the_schedule_is_off_and_needs_the_job_type(work: JobType) -> None:
    row = work.schedule("daily", cron="@daily", enabled=False)
    assert row.run_now().created
    unknown = Schedule.objects.create(job_name="nobody.knows", name="x", cron="@daily")
    with pytest.raises(UnknownJob):
        unknown.run_now()


def test_run_now_is_part_of_the_callers_transaction(work: JobType) -> None:
    row = work.schedule("daily", cron="@daily")
    with transaction.atomic():
        row.run_now()
        transaction.set_rollback(True)
    assert row.run_now().created
    assert row.jobs.count() == 1


def test_enabling_does_not_catch_up(work: JobType, at: At) -> None:
    at(2026, 5, 4, 12, 30)
    row = work.schedule("hourly", cron="@hourly", catch_up="all")
    assert row.disable()
    assert not row.disable()
    at(2026, 5, 4, 15, 20)
    assert row.enable()
    assert not row.enable()
    assert row.next_run_at == moment(16)
    assert look() == 0
    at(2026, 5, 4, 16, 0, 1)
    look()
    assert nominal(row) == ["04 16:00:00"]


def test_workers_move_a_schedule_on_while_it_is_off(work: JobType, at: At) -> None:
    at(2026, 5, 4, 12, 30)
    row = work.schedule("hourly", cron="@hourly", catch_up="all")
    Schedule.objects.update(enabled=False)
    at(2026, 5, 4, 15, 20)
    assert look() == 0
    assert reread(row).next_run_at == moment(16)
    Schedule.objects.update(enabled=True)
    assert look() == 0


@pytest.mark.parametrize("how", ["save", "save of a field", "update", "bulk_update"])
def test_turning_on_by_hand_does_not_catch_up(work: JobType, at: At, how: str) -> None:
    """Though no worker was up while it was off."""
    at(2026, 5, 4, 12, 30)
    row = work.schedule("hourly", cron="@hourly", catch_up="all")
    other = work.schedule("other", cron="@hourly", catch_up="all")
    row.disable()
    at(2026, 5, 4, 15, 20)
    row.enabled = True
    if how == "update":
        Schedule.objects.update(enabled=True)
    elif how == "bulk_update":
        Schedule.objects.bulk_update([row], ["enabled"])
    else:
        row.save(update_fields=None if how == "save" else ["enabled"])
        assert row.next_run_at == moment(16)
    assert reread(row).next_run_at == moment(16)
    look()
    assert nominal(row) == []
    assert len(nominal(other)) == 3
    at(2026, 5, 4, 16, 0, 1)
    look()
    assert nominal(row) == ["04 16:00:00"]


def test_a_rule_that_is_edited_as_it_is_turned_on_does_not_catch_up(work: JobType, at: At) -> None:
    at(2026, 5, 4, 12, 30)
    row = work.schedule("hourly", cron="@hourly", catch_up="all", enabled=False)
    at(2026, 5, 4, 15, 20)
    row.enabled, row.cron = True, "*/30 * * * *"
    row.save()
    assert row.next_run_at == reread(row).next_run_at == moment(15, 30)


def test_saving_what_was_read_before_a_tick_undoes_nothing(work: JobType, at: At) -> None:
    at(2026, 5, 4, 12, 30)
    row = work.schedule("hourly", cron="@hourly", overlap="skip")
    for hour in (13, 14):
        at(2026, 5, 4, hour, 0, 1)
        look()
    before = Schedule.objects.values().get()
    row.kwargs = {"tenant": 3}
    row.save()
    after = Schedule.objects.values().get()
    changed = {name for name in after if after[name] != before[name]}
    assert changed == {"kwargs", "rule_hash", "rule_seen"}
    assert look() == 0

    row = reread(row)
    row.skipped = 0
    row.save()
    assert reread(row).skipped == 1
    row.save(update_fields=["skipped"])
    assert reread(row).skipped == 0
    Schedule.objects.only("name").get().save()
    row.delete()
    row.save()
    assert Schedule.objects.count() == 1


@pytest.mark.parametrize("rule", [{"cron": "@hourly"}, {"every": HOUR}])
def test_a_next_run_that_is_taken_away_is_planned_anew(
    work: JobType, at: At, rule: dict[str, Any]
) -> None:
    at(2026, 5, 4, 12)
    row = work.schedule("hourly", run_on_create=True, **rule)
    look()
    before = reread(row)
    assert before.last_run_at is not None
    Schedule.objects.update(next_run_at=None)
    assert reread(row).preview(1) == [before.next_run_at]
    at(2026, 5, 4, 12, 30)
    assert look() == 0
    assert reread(row).next_run_at == before.next_run_at


def test_preview_lists_coming_nominal_times(work: JobType, at: At) -> None:
    at(2026, 5, 4, 12, 30)
    row = work.schedule("hourly", cron="@hourly", until=moment(20))
    assert row.preview(3) == [moment(13), moment(14), moment(15)]
    assert len(row.preview(50)) == 8
    at(2026, 5, 4, 17, 30)
    assert row.preview(1) == [moment(18)]
    row.disable()
    assert len(row.preview()) == 3
    Schedule.objects.update(cron="wrong")
    with pytest.raises(ValueError, match="wrong"):
        reread(row).preview()


@pytest.mark.parametrize(
    ("edit", "expected"),
    [
        ({"cron": "*/5 * * * *"}, moment(12, 35)),
        ({"cron": None, "every": 7 * MINUTE, "starts_at": moment(12)}, moment(12, 35)),
        ({"timezone": "Asia/Kathmandu"}, moment(13, 15)),
        ({"starts_at": moment(15, 30)}, moment(16)),
        ({"until": moment(12, 45)}, None),
        ({"catch_up": "all", "jitter": MINUTE}, moment(13)),
    ],
)
@pytest.mark.parametrize("how", ["update", "save"])
def test_edits_from_anywhere_take_effect_within_one_look(
    work: JobType, at: At, edit: dict[str, Any], expected: datetime | None, how: str
) -> None:
    at(2026, 5, 4, 12, 30)
    row = work.schedule("hourly", cron="@hourly")
    if how == "update":
        Schedule.objects.filter(pk=row.pk).update(**edit)
        look()
    else:
        for name, value in edit.items():
            setattr(row, name, value)
        row.save(update_fields=list(edit))
        assert row.next_run_at == expected
    assert reread(row).next_run_at == expected
    assert not Job.objects.exists()


def test_a_schedule_that_ended_goes_on_when_until_is_put_off(work: JobType, at: At) -> None:
    at(2026, 5, 4, 12)
    row = work.schedule("grid", every=HOUR, until=moment(13, 30))
    look()
    at(2026, 5, 4, 13, 1)
    look()
    at(2026, 5, 4, 18, 30)
    look()
    assert reread(row).next_run_at is None
    Schedule.objects.update(until=moment(23))
    look()
    grid = row.jobs.earliest("scheduled_for").scheduled_for
    assert grid is not None
    assert reread(row).next_run_at == grid + 7 * HOUR


@pytest.mark.parametrize("saved", [True, False])
def test_preview_goes_by_the_rule_that_is_there_now(work: JobType, at: At, *, saved: bool) -> None:
    """Though no worker has seen it yet, and the form has not been saved."""
    at(2026, 5, 4, 12, 30)
    row = work.schedule("hourly", cron="@hourly", starts_at=moment(15))
    grid = work.schedule("grid", every=HOUR)
    look()
    first = reread(grid).last_run_at
    assert first is not None

    def edited(row: Schedule, **rule: Any) -> Schedule:
        row = reread(row)
        if saved:
            Schedule.objects.filter(pk=row.pk).update(**rule)
            return reread(row)
        for name, value in rule.items():
            setattr(row, name, value)
        return row

    by_cron = edited(row, cron="30 */2 * * *", starts_at=None)
    assert by_cron.preview(2) == [moment(14, 30), moment(16, 30)]
    by_grid = edited(grid, every=10 * MINUTE)
    assert by_grid.preview(2) == [first + 10 * MINUTE, first + 20 * MINUTE]
    ended = edited(row, cron="@hourly", starts_at=None, until=moment(13))
    assert ended.preview() == [moment(13)]
    ended = edited(row, starts_at=None, until=moment(12))
    assert ended.preview() == []
    again = edited(row, cron="@hourly", until=None, starts_at=moment(15))
    assert again.preview(1) == [moment(15)]
    with pytest.raises(ValueError, match="wrong"):
        edited(row, cron="wrong").preview()
    assert edited(row, cron="@hourly", starts_at=None).preview(1) == [moment(13)]


def test_preview_of_a_row_that_is_not_stored(work: JobType, at: At) -> None:
    at(2026, 5, 4, 12, 30)
    row = Schedule(job_name="scheduled.work", name="new", cron="@hourly")
    assert row.preview(2) == [moment(13), moment(14)]
    at_once, then = Schedule(job_name="scheduled.work", name="new", every=HOUR).preview(2)
    assert at_once - moment(12, 30) < 5 * SECOND
    assert then == at_once + HOUR


def test_preview_ends_with_the_calendar(work: JobType, at: At) -> None:
    at(2026, 5, 4, 12, 30)
    coming = work.schedule("leap", cron="0 0 29 2 *").preview(5000)
    assert len(coming) == 1933
    assert coming[-1] == datetime(9996, 2, 29, tzinfo=UTC)


def test_an_edit_does_not_make_a_schedule_miss_what_is_due(work: JobType, at: At) -> None:
    at(2026, 5, 4, 12, 30)
    row = work.schedule("hourly", cron="@hourly")
    at(2026, 5, 4, 13, 0, 1)
    Schedule.objects.update(until=moment(20), kwargs={"tenant": 3})
    look()
    assert nominal(row) == ["04 13:00:00"]


def test_a_longer_interval_goes_on_from_the_last_tick(work: JobType, at: At) -> None:
    at(2026, 5, 4, 12)
    row = work.schedule("grid", every=HOUR)
    look()
    last = reread(row).last_run_at
    assert last is not None
    Schedule.objects.update(every=timedelta(seconds=20))
    assert look() == 0
    assert reread(row).next_run_at == last + timedelta(seconds=20)


@pytest.mark.parametrize(
    ("edit", "why"),
    [
        ({"cron": "every day"}, "'every day' is not a cron expression"),
        ({"cron": None}, "a schedule has either cron or every"),
        ({"timezone": "Mars/Olympus"}, "is not a time zone"),
        ({"jitter": HOUR}, "jitter is from 0 on and shorter"),
        ({"jitter": timedelta(days=-1)}, "jitter is from 0 on and shorter"),
        ({"jitter": timedelta.max}, "jitter is from 0 on and shorter"),
        ({"starts_at": datetime.max.replace(tzinfo=UTC)}, "starts_at lies before year 1 or after"),
        ({"overlap": "wait"}, "overlap is allow or skip"),
        ({"kwargs": {"unknown": 1}}, "TypeError"),
        ({"args": {"no": "list"}}, "TypeError"),
    ],
)
def test_a_broken_schedule_says_why_stops_no_other_and_is_mended_by_an_edit(
    work: JobType, at: At, edit: dict[str, Any], why: str
) -> None:
    at(2026, 5, 4, 12, 30)
    row = work.schedule("broken", cron="@hourly")
    other = work.schedule("other", cron="@hourly")
    right = {name: getattr(row, name) for name in edit}
    Schedule.objects.filter(pk=row.pk).update(**edit)
    look()
    assert why in reread(row).broken
    at(2026, 5, 4, 13, 0, 1)
    look()
    assert why in reread(row).broken
    assert nominal(row) == []
    assert nominal(other) == ["04 13:00:00"]

    Schedule.objects.filter(pk=row.pk).update(**right)
    look()
    assert reread(row).broken == ""
    assert nominal(row) == ["04 13:00:00"]


def test_a_schedule_that_the_database_refuses_is_found_out_and_stops_no_other(at: At) -> None:
    def key(tenant: int) -> str:
        if tenant == 13:
            with connection.cursor() as cursor:
                cursor.execute("SELECT 1 / 0")
        return f"tenant {tenant}"

    @job(name="scheduled.keyed", concurrency_key=key)
    def keyed(tenant: int) -> None: ...

    at(2026, 5, 4, 12, 30)
    for tenant in (12, 13, 14):
        keyed.schedule(f"tenant-{tenant}", cron="@hourly", kwargs={"tenant": tenant})
    at(2026, 5, 4, 13, 0, 1)
    with transaction.atomic():
        look()
    assert sorted(Job.objects.values_list("concurrency_key", flat=True)) == [
        "tenant 12",
        "tenant 14",
    ]
    assert "division by zero" in Schedule.objects.get(name="tenant-13").broken


def test_a_refused_schedule_beside_one_that_is_always_behind_stops_no_other(
    work: JobType, at: At, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(firing, "TIME", 60.0)
    at(2026, 5, 4, 12, 30)
    behind, bad, other = (
        work.schedule(name, cron="@hourly", **more)
        for name, more in (
            ("behind", {"catch_up": "all"}), ("bad", {"overlap": "skip"}), ("other", {})
        )
    )  # fmt: skip
    at(2026, 5, 4, 13, 0, 1)
    look()
    # The count can't be raised any more, and the tick of 14:00 is to be skipped.
    Schedule.objects.filter(pk=bad.pk).update(skipped=2**31 - 1)
    Schedule.objects.filter(pk=behind.pk).update(next_run_at=moment(14) - timedelta(days=9000))
    at(2026, 5, 4, 14, 0, 1)
    firing.run_due(registry.names())
    assert "out of range" in reread(bad).broken
    assert nominal(other) == ["04 13:00:00", "04 14:00:00"]
    assert behind.jobs.count() == 1 + firing.JOBS // 3


def far_behind(count: int, **more: Any) -> None:
    """Let so many schedules of the job type `work` have missed each second of a day."""
    Schedule.objects.bulk_create(
        Schedule(
            job_name="scheduled.work",
            name=f"behind-{n}",
            every=SECOND,
            catch_up="all",
            next_run_at=moment(12),
            **more,
        )
        for n in range(count)
    )


def test_one_look_makes_some_jobs_of_each_schedule_that_is_far_behind(
    work: JobType, at: At, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(firing, "TIME", 60.0)
    far_behind(60)
    at(2026, 5, 5, 12)
    for looks in (1, 2):
        assert firing.run_due(registry.names()) == 0
        made = Counter(Job.objects.values_list("schedule", flat=True))
        assert len(made) == 60
        assert set(made.values()) == {looks * (firing.JOBS // 60)}
    first = Schedule.objects.get(name="behind-0")
    seconds = range(looks * (firing.JOBS // 60))
    assert nominal(first) == [f"04 12:00:{second:02}" for second in seconds]
    in_order = Job.objects.order_by("pk").values_list("scheduled_for", flat=True)
    assert list(in_order) == sorted(in_order)


def test_what_is_far_behind_keeps_no_other_from_its_time(work: JobType, at: At) -> None:
    far_behind(3 * firing.BATCH)
    at(2026, 5, 5, 11, 59)
    other = work.schedule("other", cron="@hourly")
    at(2026, 5, 5, 12, 0, 1)
    firing.run_due(registry.names())
    firing.run_due(registry.names())
    assert nominal(other) == ["05 12:00:00"]
    assert Job.objects.exclude(schedule=other).exists()


def test_one_look_makes_only_so_many_bytes_of_arguments_but_at_least_one_job(
    work: JobType, at: At, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(firing, "BYTES", 1000)
    far_behind(1, args=["x" * 300])
    at(2026, 5, 5, 12)
    firing.run_due(registry.names())
    assert Job.objects.count() == 3
    Schedule.objects.all().delete()
    far_behind(4, args=["x" * 1100])
    for looks in range(1, 6):
        firing.run_due(registry.names())
        assert Job.objects.count() == 3 + looks


def test_one_look_takes_a_moment_though_keys_take_their_time(
    at: At, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(firing, "TIME", 0.0)
    keyed: list[int] = []

    def key(tenant: int = 0) -> str:
        keyed.append(tenant)
        return f"tenant {tenant}"

    job(name="scheduled.work", concurrency_key=key)(lambda tenant=0: None)
    far_behind(2)
    at(2026, 5, 4, 12, 0, 2)
    for looks in range(1, 7):
        firing.run_due(registry.names())
        assert len(keyed) == Job.objects.count() == looks
    assert set(Counter(Job.objects.values_list("schedule", flat=True)).values()) == {3}
    for row in Schedule.objects.all():
        assert nominal(row) == ["04 12:00:00", "04 12:00:01", "04 12:00:02"]


# What can't be stored; a lone surrogate, which can't either, would not pass between the processes
# that share this suite when it is logged.
@pytest.mark.parametrize(
    "error", [OperationalError("another database is away"), SystemExit(1), ValueError("\x00")]
)
@pytest.mark.parametrize("run_on_create", [False, True])
def test_what_users_code_raises_for_a_schedule_stops_no_other(
    work: JobType, at: At, error: BaseException, *, run_on_create: bool
) -> None:
    def key() -> str:
        raise error

    at(2026, 5, 4, 12, 30)
    # Made where nobody knows the job type.
    Schedule.objects.create(
        job_name="scheduled.keyed", name="bad", cron="@hourly", run_on_create=run_on_create
    )
    other = work.schedule("other", cron="@hourly")
    job(name="scheduled.keyed", concurrency_key=key)(lambda: None)
    at(2026, 5, 4, 13, 0, 1)
    with transaction.atomic():
        assert look() == 1
    assert nominal(other) == ["04 13:00:00"]
    assert Schedule.objects.get(name="bad").broken


def refuse(how: str) -> None:
    """Fail as the jobs' database lets users' code fail whose connection lives on."""
    with connection.cursor() as cursor:
        if how == "a closed cursor":
            cursor.close()
        cursor.execute(f"DO $$ BEGIN RAISE EXCEPTION 'refused' USING ERRCODE = '{how}'; END $$")


def refuse_and_go_on(how: str) -> None:
    with contextlib.suppress(Error):
        refuse(how)


def refuse_in_other_words(how: str) -> None:
    try:
        refuse(how)
    except Error as error:
        raise ValueError("busy") from error


# A statement that was cancelled or took too long, a lock that was not free, a conflict, a deadlock.
@pytest.mark.parametrize("how", ["57014", "55P03", "40001", "40P01", "a closed cursor"])
@pytest.mark.parametrize("fail", [refuse, refuse_and_go_on, refuse_in_other_words])
@pytest.mark.parametrize("run_on_create", [False, True])
def test_users_code_that_fails_on_the_jobs_database_stops_no_other_and_is_tried_again(
    work: JobType, at: At, how: str, fail: Callable[[str], None], *, run_on_create: bool
) -> None:
    works = how == "a closed cursor" and fail is refuse_and_go_on
    failing = [how]

    def key() -> str:
        if failing:
            fail(how)
        return "key"

    at(2026, 5, 4, 12, 30)
    Schedule.objects.bulk_create(
        Schedule(job_name="scheduled.keyed", name=f"bad-{n}", cron="@hourly",
                 run_on_create=run_on_create)
        for n in range(2)
    )  # fmt: skip
    others = [work.schedule(f"other-{n}", cron="@hourly") for n in range(2)]
    job(name="scheduled.keyed", concurrency_key=key)(lambda: None)
    at(2026, 5, 4, 13, 0, 1)
    look()
    assert [nominal(other) for other in others] == [["04 13:00:00"]] * 2
    for row in Schedule.objects.filter(job_name="scheduled.keyed"):
        said = {refuse: "refused", refuse_in_other_words: "busy"}.get(fail, "")
        assert (said if how != "a closed cursor" else "") in row.broken
        assert bool(row.broken) == (not works)
        assert works or 29 * SECOND < row.retry_at - moment(13, 0, 1) < 2 * MINUTE
    failing.clear()
    at(2026, 5, 4, 13, 5)
    look()
    for row in Schedule.objects.filter(job_name="scheduled.keyed"):
        assert (row.broken, row.retry_at) == ("", None)
        assert "04 13:00:00" in nominal(row)


def test_arguments_that_a_database_shows_with_its_refusal_are_not_kept(
    work: JobType, at: At
) -> None:
    at(2026, 5, 4, 12, 30)
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE durable_job ADD CONSTRAINT small CHECK (kwargs NOT LIKE '%7%')")
    row = work.schedule("bad", cron="@hourly", kwargs={"tenant": 7777})
    at(2026, 5, 4, 13, 0, 1)
    look()
    assert '"small"' in reread(row).broken
    assert "7777" not in reread(row).broken


def test_what_users_code_says_of_a_first_run_keeps_its_class(at: At) -> None:
    def key() -> str:
        raise ValueError("tenant: unknown")

    at(2026, 5, 4, 12, 30)
    kind = job(name="scheduled.keyed", concurrency_key=key)(lambda: None)
    row = kind.schedule("row", cron="@hourly", run_on_create=True)
    assert row.broken == "ValueError: tenant: unknown"


@pytest.mark.django_db(transaction=True)
def test_no_schedule_is_to_blame_for_a_database_that_is_away(at: At) -> None:
    def key() -> str:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")
        return "key"

    at(2026, 5, 4, 12, 30)
    kind = job(name="scheduled.keyed", concurrency_key=key)(lambda: None)
    row = kind.schedule("hourly", cron="@hourly")
    at(2026, 5, 4, 13, 0, 1)
    with pytest.raises(OperationalError):
        look()
    assert reread(row).broken == ""


@pytest.fixture
def passing() -> list[BaseException]:
    """Errors that the key of `scheduled.keyed` raises, while there are any."""
    errors: list[BaseException] = []

    def key(tenant: int = 0) -> str:
        if errors:
            raise errors[0]
        return f"tenant {tenant}"

    job(name="scheduled.keyed", concurrency_key=key)(lambda tenant=0: None)
    return errors


@pytest.mark.parametrize(
    ("catch_up", "expected"),
    [
        ("skip", ["04 13:01:00"]),
        ("one", ["04 13:01:00"]),
        ("all", ["04 13:00:00", "04 13:00:30", "04 13:01:00"]),
    ],
)
def test_a_schedule_that_a_passing_error_stops_is_tried_again(
    passing: list[BaseException],
    at: At,
    caplog: pytest.LogCaptureFixture,
    catch_up: str,
    expected: list[str],
) -> None:
    at(2026, 5, 4, 12, 59, 50)
    row = registry.get("scheduled.keyed").schedule(
        "row", every=30 * SECOND, starts_at=moment(13), catch_up=catch_up
    )
    passing.append(ConnectionError("the cache did not answer"))
    for second in (1, 20, 31, 32):
        at(2026, 5, 4, 13, 0, second)
        look()
        assert "the cache did not answer" in reread(row).broken
    assert len(caplog.records) == 1
    passing.clear()
    at(2026, 5, 4, 13, 0, 59)
    assert look() == 0
    assert reread(row).broken
    at(2026, 5, 4, 13, 1, 5)
    look()
    assert nominal(row) == expected
    assert (reread(row).broken, reread(row).retry_at) == ("", None)
    assert look() == 0


def test_one_failure_of_users_code_makes_no_tick_missed(
    passing: list[BaseException], at: At
) -> None:
    at(2026, 5, 4, 12, 59)
    kind = registry.get("scheduled.keyed")
    row = kind.schedule("hourly", cron="@hourly", catch_up="skip")
    passing.append(ConnectionError("the cache did not answer"))
    at(2026, 5, 4, 13, 0, 1)
    look()
    passing.clear()
    assert 29 < (firing.run_due(registry.names()) or 0) < 30
    at(2026, 5, 4, 13, 0, 32)
    assert look() == 1
    assert (nominal(row), reread(row).broken) == (["04 13:00:00"], "")


def test_a_first_run_that_a_passing_error_stops_is_made_later(
    passing: list[BaseException], work: JobType, at: At
) -> None:
    at(2026, 5, 4, 12, 10)
    passing.append(ConnectionError("the cache did not answer"))
    kind = registry.get("scheduled.keyed")
    row = kind.schedule("daily", cron="@daily", run_on_create=True)
    assert "the cache did not answer" in row.broken
    assert look() == 0
    passing.clear()
    at(2026, 5, 4, 12, 10, 20)
    assert (look(), bool(reread(row).broken)) == (0, True)
    at(2026, 5, 4, 12, 10, 32)
    assert (look(), reread(row).broken) == (1, "")
    assert reread(row).next_run_at == moment(0) + timedelta(days=1)
    assert look() == 0


@pytest.mark.parametrize("edit", [{"cron": "wrong"}, {"kwargs": {"unknown": 1}}])
def test_what_only_an_edit_mends_is_not_tried_again(
    passing: list[BaseException], at: At, edit: dict[str, Any]
) -> None:
    at(2026, 5, 4, 12, 59)
    row = registry.get("scheduled.keyed").schedule("hourly", cron="@hourly")
    # As if it had been planned before the code changed.
    Schedule.objects.filter(pk=row.pk).update(**edit)
    Schedule.objects.filter(pk=row.pk).update(rule_seen=F("rule_hash"))
    at(2026, 5, 4, 13, 0, 1)
    look()
    assert reread(row).broken
    assert (reread(row).retry_at, firing.run_due(registry.names())) == (None, None)


def test_an_edit_of_what_waits_for_another_try_counts_at_once(
    passing: list[BaseException], at: At
) -> None:
    at(2026, 5, 4, 12, 59)
    row = registry.get("scheduled.keyed").schedule("hourly", cron="@hourly")
    passing.append(ConnectionError("the cache did not answer"))
    at(2026, 5, 4, 13, 0, 1)
    look()
    passing.clear()
    Schedule.objects.update(kwargs={"tenant": 7})
    assert look() == 1
    assert (nominal(row), reread(row).broken) == (["04 13:00:00"], "")


@pytest.mark.parametrize(
    ("column", "value"),
    [
        *((column, value) for column in ("starts_at", "until", "next_run_at", "last_tick",
                                         "last_run_at", "last_skipped_at")
          for value in ("infinity", "-infinity", "4713-01-01 BC", "20000-01-01")),
        *((column, value) for column in ("every", "jitter")
          for value in ("10000000 years", "-10000000 years")),
    ],
)  # fmt: skip
def test_what_python_can_not_hold_stops_no_other_schedule(
    work: JobType, at: At, column: str, value: str
) -> None:
    at(2026, 5, 4, 12, 30)
    bad = work.schedule("bad", every=HOUR)
    good = work.schedule("good", cron="@hourly")
    with connection.cursor() as cursor:
        # Another argument, too, so that it is planned anew.
        cursor.execute(
            f"UPDATE durable_schedule SET {column} = %s, args = '[1]' WHERE id = %s",
            [value, bad.pk],
        )
    look()
    at(2026, 5, 4, 13, 0, 1)
    look()
    assert nominal(good) == ["04 13:00:00"]
    if column in ("starts_at", "until", "every", "jitter"):
        assert column in reread(bad).broken
        with pytest.raises(ValueError, match=column):
            reread(bad).preview()
    else:
        assert reread(bad).broken == ""
    Schedule.objects.update(starts_at=None, until=None, every=HOUR, jitter=None, next_run_at=None)
    look()
    at(2026, 5, 4, 14, 0, 1)
    look()
    assert reread(bad).broken == ""
    assert bad.jobs.exists()


@pytest.mark.parametrize("value", ["infinity", "-infinity"])
def test_a_next_run_that_python_can_not_hold_stops_no_other_schedule(
    work: JobType, at: At, value: str
) -> None:
    at(2026, 5, 4, 12, 30)
    bad, good = (work.schedule(name, cron="@hourly", catch_up="all") for name in ("bad", "good"))
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE durable_schedule SET next_run_at = %s WHERE id = %s", [value, bad.pk]
        )
    look()
    at(2026, 5, 4, 13, 0, 1)
    look()
    assert nominal(good) == ["04 13:00:00"]
    assert nominal(bad) == []
    assert ("next_run_at" in reread(bad).broken) == (value == "-infinity")
    Schedule.objects.filter(pk=bad.pk).update(cron="*/5 * * * *")
    look()
    assert (reread(bad).broken, reread(bad).next_run_at) == ("", moment(13, 5))


def test_a_schedule_without_jitter_is_not_taken_before_its_time(work: JobType, at: At) -> None:
    at(2026, 5, 4, 12, 30)
    work.schedule("plain", cron="@hourly")
    jittered = work.schedule("jittered", cron="@daily", jitter=HOUR)
    assert store.lock_due_schedules(connection, ["scheduled.work"], 10) == []
    at(2026, 5, 4, 23, 30)
    look()
    at(2026, 5, 5, 23, 10)
    Schedule.objects.filter(name="plain").update(next_run_at=moment(0) + timedelta(days=2))
    (due,) = store.lock_due_schedules(connection, ["scheduled.work"], 10)
    assert due.id == jittered.pk


def test_without_any_jitter_no_schedule_is_looked_at_before_its_time(work: JobType) -> None:
    def widest() -> timedelta:
        return store.base.rows(connection, "widest_jitter")[0][0]  # type: ignore[no-any-return]

    assert widest() == timedelta(0)
    work.schedule("jittered", cron="@daily", jitter=HOUR)
    assert widest() == HOUR


def test_schedules_say_so_while_no_live_worker_knows_their_job_type(work: JobType, at: At) -> None:
    at(2026, 5, 4, 12, 30)
    row = work.schedule("hourly", cron="@hourly")
    beat("another.type")
    firing.mark_unknown()
    assert reread(row).broken == "no live worker knows the job type"
    at(2026, 5, 4, 13, 0, 1)
    assert look("another.type") == 0
    assert look("scheduled.work") == 1
    assert reread(row).broken == ""
    beat("scheduled.work")
    firing.mark_unknown()
    assert reread(row).broken == ""


def test_a_constraint_allows_one_job_for_a_nominal_time(work: JobType, at: At) -> None:
    at(2026, 5, 4, 12, 30)
    row = work.schedule("hourly", cron="@hourly")
    at(2026, 5, 4, 13, 0, 1)
    look()
    Schedule.objects.update(next_run_at=moment(13))
    assert look() == 0
    assert reread(row).next_run_at == moment(14)
    with pytest.raises(IntegrityError), transaction.atomic():
        Job.all_objects.create(name="x", schedule=row, scheduled_for=moment(13))


def test_a_failing_occurrence_is_a_dead_letter_and_the_schedule_goes_on(at: At) -> None:
    @job(name="scheduled.failing", max_attempts=1)
    def failing() -> None: ...

    at(2026, 5, 4, 12, 30)
    row = failing.schedule("hourly", cron="@hourly", overlap="skip")
    at(2026, 5, 4, 13, 0, 1)
    look()
    hand = Hand("scheduled.failing")
    dead = hand.kill(hand.take(), ValueError("no"))
    before = reread(row)
    replayed = DeadLetter.objects.get(job=dead).replay()
    assert (replayed.schedule, replayed.scheduled_for) == (None, None)
    after = reread(row)
    assert (after.next_run_at, after.last_run_at) == (before.next_run_at, before.last_run_at)
    at(2026, 5, 4, 14, 0, 1)
    look()
    assert nominal(row) == ["04 13:00:00", "04 14:00:00"]


def test_deleting_a_schedule_leaves_its_jobs(work: JobType, at: At) -> None:
    at(2026, 5, 4, 12)
    row = work.schedule("grid", every=HOUR)
    look()
    row.delete()
    made = Job.objects.get()
    assert made.schedule is None
    assert made.scheduled_for is not None


def test_500_schedules_due_at_once_make_500_jobs(work: JobType, at: At) -> None:
    at(2026, 5, 4, 12, 30)
    Schedule.objects.bulk_create(
        Schedule(job_name="scheduled.work", name=f"tenant-{n}", cron="0 * * * *")
        for n in range(500)
    )
    assert look() == 0
    at(2026, 5, 4, 13, 0, 1)
    assert look() == 500
    assert look() == 0
    assert Job.objects.values("schedule").distinct().count() == 500


def test_300_schedules_over_a_day_make_exactly_the_jobs_that_their_rules_name(
    work: JobType, at: At
) -> None:
    at(2026, 5, 4, 0, 0, 0)
    crons = ["0 * * * *", "30 */2 * * *", "15 9,17 * * *", "@daily"]
    for n in range(300):
        work.schedule(f"s-{n}", cron=crons[n % 4], kwargs={"tenant": n})
    for minute in range(15, 24 * 60 + 1, 15):
        at(2026, 5, 4 + minute // 1440, minute // 60 % 24, minute % 60, 1)
        look()
    counts = Counter(Job.objects.values_list("schedule__cron", flat=True))
    assert counts == {"0 * * * *": 24 * 75, "30 */2 * * *": 12 * 75, "15 9,17 * * *": 2 * 75,
                      "@daily": 75}  # fmt: skip
    late = [one for one in Job.objects.all() if one.enqueued_at - one.scheduled_for > 5 * SECOND]
    assert not late


def test_one_with_jitter_is_looked_forward_to_as_much_earlier(work: JobType, at: At) -> None:
    at(2026, 5, 5, 11, 30)
    work.schedule("hourly", cron="@hourly", jitter=10 * MINUTE)
    assert firing.run_due(registry.names(), ahead=MINUTE) == pytest.approx(1800, abs=5)
    # The next look is to find it on time, however long it is until then.
    assert firing.run_due(registry.names(), ahead=HOUR) == pytest.approx(1200, abs=5)
    at(2026, 5, 5, 11, 49, 30)
    assert firing.run_due(registry.names(), ahead=MINUTE) == pytest.approx(30, abs=5)


@pytest.mark.parametrize("rule", [{"every": HOUR}, {"cron": "@hourly"}])
@pytest.mark.parametrize("overlap", ["allow", "skip"])
def test_the_last_tick_is_judged_once_that_a_jitter_has_made_early(
    work: JobType, at: At, rule: dict[str, Any], overlap: str
) -> None:
    at(2026, 5, 4, 12, 10)
    row = work.schedule(
        "row", **rule, overlap=overlap, jitter=50 * MINUTE, starts_at=moment(13), until=moment(13)
    )
    at(2026, 5, 4, 12, 20)
    answers = [firing.run_due(registry.names()) for _ in range(4)]
    assert nominal(row) == ["04 13:00:00"]
    assert answers[2:] == [None, None]
    row = reread(row)
    assert (row.next_run_at, row.skipped, row.preview()) == (None, 0, [])


def test_an_edit_judges_no_tick_again_that_a_jitter_has_made_early(work: JobType, at: At) -> None:
    at(2026, 5, 4, 12, 10)
    row = work.schedule("row", every=HOUR, jitter=50 * MINUTE, starts_at=moment(13), overlap="skip")
    at(2026, 5, 4, 12, 20)
    look()
    row = reread(row)
    row.kwargs = {"tenant": 7}
    row.save()
    assert (look(), reread(row).skipped, reread(row).next_run_at) == (0, 0, moment(14))


def test_a_schedule_that_the_database_goes_on_refusing_is_logged_once(
    work: JobType, at: At, caplog: pytest.LogCaptureFixture
) -> None:
    at(2026, 5, 4, 12, 59)
    row = work.schedule("row", cron="@hourly")
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE durable_job ADD CONSTRAINT none CHECK (schedule_id IS NULL)")
    for second in (1, 32):
        at(2026, 5, 4, 13, 0, second)
        assert look() == 0
    assert [record.getMessage() for record in caplog.records] == [
        "The schedule scheduled.work row cannot fire"
    ]
    assert "IntegrityError" in reread(row).broken
    assert reread(row).retry_at > moment(13, 1)
