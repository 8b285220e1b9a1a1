"""Schedules: what users write with, and what is done to one row."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.db import Error, IntegrityError, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import F

from django_durable import payloads, store, ticks
from django_durable.choices import CatchUp, Overlap
from django_durable.conf import conf
from django_durable.cron import Cron
from django_durable.errortext import ErrorText
from django_durable.exceptions import PayloadError
from django_durable.fields import can_be_read
from django_durable.jobtypes import Call, JobType, check_text, registry

if TYPE_CHECKING:
    from django_durable.models import Job, Schedule

# Why a schedule does not fire, where the reason may pass by itself.
NO_WORKER = "no live worker knows the job type"
NOT_DECLARED = "it is no longer declared in the code"
# When to try again after an error that may pass by itself: so soon that the tick that has met it is
# not missed.
RETRY = timedelta(seconds=30)
NOT_WRITTEN = "it was not written: "
_CLASS_IN_BROKEN = re.compile(rf"(?:{NOT_WRITTEN})?([\w.<>]+): ")
_NOTHING = timedelta(0)


@dataclass(frozen=True)
class Declaration:
    """Hold what code says of one schedule; None as time zone is the project's.

    Raises `ValueError` for a wrong rule or what the table has no room for, and `TypeError` for
    arguments that the function of the job type does not take.
    """

    job_type: JobType
    name: str
    cron: str | None = None
    every: timedelta | None = None
    timezone: str | None = None
    starts_at: datetime | None = None
    until: datetime | None = None
    catch_up: str = CatchUp.ONE.value
    overlap: str = Overlap.ALLOW.value
    jitter: timedelta | None = None
    run_on_create: bool = False
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_text("name", self.name, 255)
        if isinstance(self.cron, str) and self.cron:
            check_text("cron", self.cron, 255)
        if not isinstance(self.run_on_create, bool):
            raise ValueError(f"run_on_create is True or False, not {self.run_on_create!r:.50}")
        if isinstance(self.args, str) or not isinstance(self.args, Sequence):
            raise ValueError(f"args must be a list of arguments, not {self.args!r:.100}")
        if not isinstance(self.kwargs, Mapping):
            raise ValueError(f"kwargs must be a dict of arguments, not {self.kwargs!r:.100}")
        make_rule(
            **{name: getattr(self, name) for name in RULE_FIELDS if name != "timezone"},
            timezone=self.timezone or "UTC",
        )
        takes_context = self.job_type.takes_context
        payloads.bind_arguments(
            self.job_type.func, self.args, dict(self.kwargs), takes_context=takes_context
        )
        self._texts()

    def _texts(self) -> tuple[str, str]:
        takes_context = self.job_type.takes_context
        # A wrong setting is for the system check to tell, not for the module that declares.
        limit: object = conf.max_payload
        return payloads.encode_arguments(
            self.args,
            dict(self.kwargs),
            names=payloads.argument_names(self.job_type.func, takes_context=takes_context),
            limit=limit if isinstance(limit, int) else None,
        )

    @property
    def names(self) -> list[str]:
        """Return the names that the job type has or had."""
        return [self.job_type.name, *self.job_type.aliases]

    def choose(self, rows: Iterable[Schedule]) -> list[Schedule]:
        """Return the rows that are the declared one, that of the newest name first."""
        found = [row for row in rows if self.is_named(row.job_name, row.name)]
        order = self.names.index
        return sorted(found, key=lambda row: (order(row.job_name), row.name != self.name))

    def is_named(self, job_name: str, name: str) -> bool:
        """Tell whether a row of this job type and name is the declared one.

        A schedule that is called like its job type keeps its row when that is renamed.
        """
        if job_name not in self.names:
            return False
        return name == self.name or (self.name == self.job_type.name and name in self.names)

    def values(self) -> dict[str, Any]:
        """Return the columns."""
        rule = {name: getattr(self, name) for name in RULE_FIELDS}
        return {
            **rule,
            "job_name": self.job_type.name,
            "name": self.name,
            "timezone": self.timezone or settings.TIME_ZONE,
            "run_on_create": self.run_on_create,
            "args": list(self.args),
            "kwargs": dict(self.kwargs),
        }

    def text(self) -> str:
        """Return what tells this declaration from a changed one."""
        values = {**self.values(), "payload": self._texts()}
        del values["args"], values["kwargs"]
        return json.dumps(values, default=str, sort_keys=True)


RULE_FIELDS = (
    "cron", "every", "timezone", "starts_at", "until", "catch_up", "overlap", "jitter",
)  # fmt: skip


def make_rule(
    *,
    cron: str | None,
    every: timedelta | None,
    timezone: str,
    starts_at: datetime | None,
    until: datetime | None,
    catch_up: str,
    overlap: str,
    jitter: timedelta | None,
) -> ticks.Rule:
    """Return the rule that these values make; raises `ValueError`, with a sentence, for none."""
    if overlap not in Overlap.values:
        raise ValueError(f"overlap is allow or skip, not {overlap!r:.50}")
    Cron("@daily", timezone)
    if not isinstance(catch_up, str):
        raise ValueError(f"catch_up is one, skip or all, not {catch_up!r:.50}")
    for name, moment in (("starts_at", starts_at), ("until", until)):
        if moment is not None and not isinstance(moment, datetime):
            raise ValueError(f"{name} is an aware datetime, not {moment!r:.50}")
        if moment is not None and moment.utcoffset() is not None and not can_be_read(moment):
            raise ValueError(f"{name} lies before year 1 or after 9999, or nearly so: leave it out")
    return ticks.Rule(
        cron=Cron(cron, timezone) if cron not in (None, "") else None,
        every=every,
        starts_at=starts_at,
        until=until,
        catch_up=str(catch_up),  # type: ignore[arg-type]
        jitter=jitter,
    )


def rule_of(row: Schedule) -> ticks.Rule:
    """Return the rule of a row; raises `ValueError` for a wrong one."""
    return make_rule(**{name: getattr(row, name) for name in RULE_FIELDS})


def schedule(*, name: str | None = None, **rule: Any) -> Callable[[JobType], JobType]:
    """Declare a schedule of a job type: `@schedule(cron="0 9 * * *")` above `@job`.

    Takes `cron` (five fields, or `@daily` and its like) or `every` (a timedelta), and `timezone,
    starts_at, until, catch_up, overlap, jitter, run_on_create, args, kwargs`. It is called like
    the job type unless `name` says otherwise; several decorators need several names. Workers
    write it to the table when they start. Raises `ValueError` for a wrong rule and `TypeError`
    for an unknown option or arguments that the function does not take.
    """

    def declare(job_type: JobType) -> JobType:
        if not isinstance(job_type, JobType):
            raise TypeError("put @schedule above @job: it takes a job type")
        declaration = _declared(job_type, job_type.name if name is None else name, rule, "name")
        if any(each.name == declaration.name for each in job_type.schedules):
            raise ValueError(
                f"{job_type.name} has a schedule {declaration.name!r} already: give another name="
            )
        job_type.schedules.append(declaration)
        return job_type

    return declare


def _declared(job_type: JobType, name: str, options: Mapping[str, Any], beside: str) -> Declaration:
    """Return the declaration that the options of a call make; it takes one `beside` them."""
    known = {each.name for each in fields(Declaration)} - {"job_type", "name"}
    if unknown := sorted(options.keys() - known):
        raise TypeError(
            f"schedule() got unknown options: {', '.join(unknown)};"
            f" it takes {', '.join(sorted({*known, beside}))}"
        )
    return Declaration(job_type, name, **options)


def declarations() -> Iterable[Declaration]:
    """Return the schedules that this process declares."""
    for name in registry.names():
        job_type = registry.get(name)
        if job_type.name == name:
            yield from job_type.schedules


# One row.


def alias_of(row: Schedule) -> str:
    """Return the database that the row is in, or is to be in."""
    return row._state.db or conf.database


def _connection(alias: str) -> BaseDatabaseWrapper:
    wrapper: BaseDatabaseWrapper = connections[alias]
    return wrapper


def upsert(job_type: JobType, name: str, *, enabled: bool | None = None, **rule: Any) -> Schedule:
    """Make or change the schedule of this name; see `JobType.schedule`."""
    if not isinstance(enabled, bool | None):
        raise ValueError(f"enabled is True, False or None, not {enabled!r:.50}")
    declaration = _declared(job_type, name, rule, "enabled")
    more: dict[str, Any] = {}
    if not any(each.is_named(job_type.name, name) for each in job_type.schedules):
        # Or the next worker would stop a schedule that the code has declared before.
        more["declared"] = False
    with store.transaction():
        row, created = write(declaration, more, enabled=enabled is not False)
        if not created and enabled is not None:
            switch(row, on=enabled)
    return row


def write(
    declaration: Declaration, more: Mapping[str, Any] | None = None, *, enabled: bool = True
) -> tuple[Schedule, bool]:
    """Make the row of a declaration, or let it say what that says; return it and if it was made.

    `more` are further columns; `enabled` is for a new row, one that is there stays on or off.
    """
    from django_durable.models import Schedule

    values = {**declaration.values(), **(more or {})}
    row = find(declaration)
    if row is None:
        try:
            with store.transaction():
                row = Schedule(**values, enabled=enabled)
                row.save(force_insert=True)
                return row, True
        except IntegrityError:
            # Somebody else has made it this very moment, or the values are refused.
            row = find(declaration)
            if row is None:
                raise
    if row.broken == NOT_DECLARED:
        values["broken"] = ""
    for name, value in values.items():
        setattr(row, name, value)
    row.save(update_fields=list(values))
    return row, False


def find(declaration: Declaration) -> Schedule | None:
    """Return the locked row of a declaration, under whatever name its job type has had."""
    from django_durable.models import Schedule

    names = declaration.names
    called = {declaration.name}
    if declaration.name == declaration.job_type.name:
        called.update(names)
    rows = Schedule.objects.filter(job_name__in=names, name__in=called).order_by("pk")
    found = declaration.choose(rows.select_for_update(no_key=True))
    return found[0] if found else None


def lock(row: Schedule, alias: str) -> Schedule | None:
    """Return the row as it is stored, locked, or None if it is not there."""
    from django_durable.models import Schedule

    stored = Schedule.objects.using(alias).filter(pk=row.pk).only("enabled")
    locked: Schedule | None = stored.select_for_update(no_key=True).first()
    return locked


def edited_columns() -> set[str]:
    """Return the columns that people edit; the others are the scheduler's."""
    from django_durable.models import Schedule

    columns = Schedule._meta.concrete_fields
    return {column.name for column in columns if column.editable and not column.primary_key}


def plan_row(row: Schedule) -> None:
    """Plan the row just saved, if that has changed what decides over its next run."""
    from django_durable.models import Schedule

    saved = Schedule.objects.using(alias_of(row)).filter(pk=row.pk)
    locked = saved.exclude(rule_seen=F("rule_hash")).select_for_update(no_key=True).first()
    if locked is not None:
        plan(locked)
        row.refresh_from_db(fields=["next_run_at", "broken", "rule_seen", "last_job"])


def plan_new(rows: Sequence[Schedule], alias: str) -> None:
    """Set the first run of rows that are to be inserted, where the rule is right.

    The worker that sees them first may come after it; it leaves what is set as it is.
    """
    now = store.now(_connection(alias)) if rows else None
    for row in rows:
        if row.next_run_at is None and now is not None:
            with contextlib.suppress(Exception):
                row.next_run_at = ticks.first_tick(rule_of(row), now)


def plan(row: Schedule, now: datetime | None = None) -> None:
    """Work out the next run of a locked row whose rule is new or has changed, and store it."""
    from django_durable.models import Schedule

    db = _connection(alias_of(row))
    changed: dict[str, Any] = {"rule_seen": F("rule_hash"), "retry_at": None}
    is_right = False
    try:
        now = store.now(db) if now is None else now
        rule = rule_of(row)
        changed["next_run_at"] = _planned(row, rule, now)
        check_arguments(row)
        is_right, broken = True, ""
        if row.run_on_create and row.enabled and row.rule_seen == 0:
            if registry.find(row.job_name) is None:
                # A worker that knows the job type does it.
                return
            changed |= _run_on_create(row, rule, changed["next_run_at"], now)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - told in `broken`
        broken = why_broken(error, db)
        if not is_right:
            # A wrong rule says it in a sentence.
            broken = broken.removeprefix("ValueError: ")
        if is_right and now is not None and may_pass(error):
            # The first run is still to be made: it is as new as before.
            changed |= {"rule_seen": row.rule_seen, "retry_at": now + RETRY}
    if row.broken != NOT_DECLARED:
        changed["broken"] = broken
    Schedule.objects.using(db.alias).filter(pk=row.pk).update(**changed)


def check_arguments(row: Schedule) -> None:
    """Raise what a tick would for arguments that don't fit, if this process knows the job type."""
    job_type = registry.find(row.job_name)
    if job_type is not None:
        _check_kinds(row)
        takes_context = job_type.takes_context
        payloads.bind_arguments(job_type.func, row.args, row.kwargs, takes_context=takes_context)


def _check_kinds(row: Schedule) -> None:
    if not isinstance(row.args, list) or not isinstance(row.kwargs, dict):
        raise TypeError("args must be a list and kwargs a dict that can be read")


def may_pass(error: BaseException) -> bool:
    """Tell whether an error may pass by itself, which a right rule with right arguments has met."""
    return not isinstance(error, PayloadError)


def why_broken(error: BaseException, db: BaseDatabaseWrapper) -> str:
    """Say in `broken` what a schedule cannot fire for: a bad row, or users' code.

    Raises the error if the transaction on `db` can't go on: that is broken, or the connection gone.
    Users' code may have another database that is away.
    """
    if isinstance(error, Error) and not store.is_usable(db):
        raise error
    text = ErrorText.told_of(error)
    return f"{text.error_class}: {text.message}"


def class_in(broken: str) -> str:
    """Return the class of the error that `broken` tells of, without its message; or nothing."""
    found = _CLASS_IN_BROKEN.match(broken)
    return found[1] if found else ""


def _planned(row: Schedule, rule: ticks.Rule, now: datetime) -> datetime | None:
    """Return the next tick by the rule as it is now.

    One that is due stays if the rule still names it, so that an edit of other things makes no
    schedule miss it. `every` without a `starts_at` keeps to the grid that it is on.
    """
    # What somebody has written by hand and nobody can read says nothing.
    following, last_tick = _readable(row.next_run_at), _readable(row.last_tick)
    if following is not None and row.rule_seen == 0:
        return following
    anchor = rule.starts_at or last_tick or following or now
    if following is not None and following <= now:
        just_before = following - timedelta(microseconds=1)
        if rule.times(anchor).next_after(just_before) == following:
            return following
    # A jitter has its tick judged before it comes, and none is judged twice.
    latest = now if last_tick is None else max(now, last_tick + timedelta(microseconds=1))
    if rule.every is not None and rule.starts_at is None and last_tick is not None:
        return ticks.moved_on(rule, last_tick, latest)
    return ticks.first_tick(rule, latest)


def _readable(moment: datetime | None) -> datetime | None:
    return moment if moment is not None and can_be_read(moment) else None


def _run_on_create(
    row: Schedule, rule: ticks.Rule, first: datetime | None, now: datetime
) -> dict[str, Any]:
    """Make the job of a new schedule, unless its first tick is due as it is.

    Like a tick, it does not lie before `starts_at` or after `until`.
    """
    if first is not None and first <= now:
        return {}
    if now < (rule.starts_at or now) or now > (rule.until or now):
        return {}
    with transaction.atomic(using=alias_of(row)):
        made = make_jobs(row, [now], now)
    return {"last_job": made[-1].pk, "last_run_at": now} if made else {}


def switch(row: Schedule, *, on: bool) -> bool:
    """Enable or disable a schedule; see the model. Return whether that changed it."""
    from django_durable.models import Schedule

    db = _connection(alias_of(row))
    stored = Schedule.objects.using(db.alias).filter(pk=row.pk)
    with store.atomic(db):
        locked = stored.select_for_update(no_key=True).get()
        changed: bool = locked.enabled != on
        if changed:
            stored.update(enabled=on)
    row.refresh_from_db(fields=["enabled", "next_run_at"])
    return changed


def miss_nothing(keys: Sequence[int], alias: str) -> None:
    """Move those of these schedules on that are turned on now, so that they do not catch up."""
    from django_durable.models import Schedule

    rows = Schedule.objects.using(alias).filter(
        pk__in=keys, enabled=True, next_run_at__isnull=False
    )
    for row in rows.order_by("pk").select_for_update(no_key=True):
        # A worker says in `broken` what is wrong with a wrong rule.
        with contextlib.suppress(ValueError):
            following = ticks.moved_on(rule_of(row), row.next_run_at, store.now(_connection(alias)))
            Schedule.objects.using(alias).filter(pk=row.pk).update(next_run_at=following)


def run_now(row: Schedule) -> Job:
    """Make a job of the schedule at once; see `Schedule.run_now`."""
    from django_durable.choices import JobStatus
    from django_durable.models import Job, Schedule

    db = _connection(alias_of(row))
    stored = Schedule.objects.using(db.alias).filter(pk=row.pk)
    with store.atomic(db):
        locked = stored.select_for_update(no_key=True).get()
        # A statement of its own, since the lock may have been waited for.
        asked = Job.all_objects.using(db.alias).filter(pk=locked.asked_job)
        pending: Job | None = asked.filter(status=JobStatus.READY).first()
        if pending is not None:
            pending.created = False
            return pending
        (job,) = make_jobs(locked, [store.now(db)], None)
        stored.update(asked_job=job.pk)
    return job


def make_jobs(row: Schedule, nominal: Sequence[datetime], now: datetime | None) -> list[Job]:
    """Insert the jobs of these nominal times and return those that did not exist."""
    from django_durable.enqueueing import announce, as_job

    db = _connection(alias_of(row))
    new = list(tick_jobs(row, nominal, now))
    made = [
        as_job(db, tick.new, done, schedule_id=row.pk, scheduled_for=tick.nominal)
        for tick, done in zip(new, store.insert_ticks(db, new), strict=True)
        if done is not None
    ]
    announce(db, made)
    return made


def tick_jobs(
    row: Schedule, nominal: Sequence[datetime], now: datetime | None
) -> Iterator[store.Tick]:
    """Yield the jobs to insert for these nominal times, with their jitter if `now` is given."""
    from django_durable.enqueueing import new_job

    job_type = registry.get(row.job_name)
    _check_kinds(row)
    for tick in nominal:
        call = Call(job_type)
        if now is not None:
            run_after = ticks.jittered(tick, row.jitter, row.pk)
            # Not before now: what is late goes to the end of the line, as if enqueued now.
            call = call.using(run_after=max(run_after, now) if row.jitter else None)
        new = new_job(call, row.args, row.kwargs)
        yield store.Tick(row.pk, tick, new)


def preview(row: Schedule, n: int) -> list[datetime]:
    """Return coming nominal times; see `Schedule.preview`."""
    rule, now = rule_of(row), store.now(_connection(alias_of(row)))
    if row.next_run_at is not None and _is_planned(row):
        following = _readable(row.next_run_at)
        tick = None if following is None else ticks.moved_on(rule, following, now)
    else:
        tick = _planned(row, rule, now)
        if tick is not None and tick < now:
            tick = ticks.moved_on(rule, tick, now)
    coming: list[datetime] = []
    while tick is not None and len(coming) < n:
        coming.append(tick)
        tick = ticks.next_tick(rule, tick)
    return coming


def _is_planned(row: Schedule) -> bool:
    """Tell whether `next_run_at` was worked out for the rule that the row has, stored or not."""
    from django_durable.models import Schedule

    seen = Schedule.objects.using(alias_of(row)).filter(pk=row.pk, rule_seen=F("rule_hash"))
    stored = seen.only(*RULE_FIELDS).first()
    return stored is not None and all(
        getattr(stored, name) == getattr(row, name) for name in RULE_FIELDS
    )
