"""Firing: what a worker does about schedules, from its start on.

Every verb here may run in many workers at once. A schedule is fired under its row's lock, its
jobs and its next run are one commit, and one job for each nominal time is a constraint; so a
worker that dies half way has done nothing, and another one does it.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from datetime import datetime, timedelta
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple

from django.db import DatabaseError, Error, OperationalError
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Exists, F, OuterRef, QuerySet

from django_durable import notifications, schedules, store, ticks
from django_durable.choices import Overlap
from django_durable.conf import conf
from django_durable.enqueueing import as_job, tell_enqueued
from django_durable.errorlog import get_logger
from django_durable.fields import can_be_read
from django_durable.jobtypes import registry
from django_durable.models import Job, Schedule
from django_durable.querysets import ClockNow
from django_durable.schedules import NO_WORKER, NOT_DECLARED, NOT_WRITTEN

logger = get_logger("django_durable.schedules")

# How many schedules one transaction takes.
BATCH = 100
# How many jobs one look makes, and how many bytes of arguments they have, over all schedules: the
# claims of a worker wait for its look, and a statement can hold only so much.
JOBS = 500
BYTES = 4 * 1024 * 1024
# For how many seconds a look begins new ones: users' code, which makes the keys, may take its time.
TIME = 0.2
# A worker that is frozen in a transaction must not keep others from the schedules it has locked.
IDLE_FOR = timedelta(seconds=30)
# How far a look sees what a jitter makes due early, if nobody says when the next one is.
AHEAD = timedelta(seconds=1)
# For how long a worker that reconciles waits for a row that somebody holds, before it goes on with
# the others.
WAIT = timedelta(milliseconds=20)

# What is known to have taken no longer, in seconds, goes before the rest.
QUICK = 0.05
MOST_QUICK = 20_000
_quick: dict[int, None] = {}

# One thing that reconciling does, by the rows that are there.
Duty = Callable[[Sequence[Schedule]], None]


def reconcile(names: Collection[str], left: Sequence[Duty] | None = None) -> Sequence[Duty] | None:
    """Let the table say what the code declares; to be called when a worker starts.

    A changed declaration changes its one row, also when many workers start at once; a row that
    is declared no longer stops, unless this process does not know its job type at all. A
    declaration that the database refuses is broken, and keeps no other from being written.

    It takes a moment, whoever holds rows or reconciles as well. Return what is left then, to be
    passed in after a while: nothing, or None for all of it.
    """
    db = store.connection()
    held: list[Duty] = []
    with store.transaction(IDLE_FOR):
        store.wait_for_locks(db, WAIT)
        if not store.own_declarations(db):
            return left
        rows = list(Schedule.objects.filter(job_name__in=names).only(*_RECONCILED))
        duties = deque(_duties(names, rows) if left is None else left)
        until = time.monotonic() + TIME
        while duties:
            duty = duties.popleft()
            if not _is_done(duty, rows):
                held.append(duty)
            if time.monotonic() > until:
                break
    return [*duties, *held]


_RECONCILED = ("job_name", "name", "declared", "declaration", "broken")


def _duties(names: Collection[str], rows: Sequence[Schedule]) -> Iterator[Duty]:
    declared = [each for each in schedules.declarations() if each.job_type.name in names]
    for row in rows:
        if row.broken not in ("", NOT_DECLARED):
            yield partial(_plan_broken, row.pk)
    for declaration in declared:
        yield partial(_declare, declaration)
    for row in rows:
        if row.declared and not any(each.is_named(row.job_name, row.name) for each in declared):
            yield partial(_stop, row.pk)


def _is_done(duty: Duty, rows: Sequence[Schedule]) -> bool:
    """Do a duty; return False if somebody holds what it is about."""
    try:
        with store.transaction():
            duty(rows)
    except OperationalError as error:
        if not store.is_held(error):
            raise
        return False
    return True


def _plan_broken(pk: int, _rows: Sequence[Schedule]) -> None:
    """Plan anew what was broken: the code of this process may mend it."""
    broken = Schedule.objects.filter(pk=pk).exclude(broken__in=["", NOT_DECLARED])
    for row in broken.select_for_update(no_key=True):
        schedules.plan(row)


def _stop(pk: int, _rows: Sequence[Schedule]) -> None:
    """Stop what is declared no more, unless that has become the schedule of a call meanwhile."""
    _mark_undeclared(Schedule.objects.filter(pk=pk, declared=True))


def _mark_undeclared(rows: QuerySet[Schedule]) -> None:
    rows.update(declared=False, broken=NOT_DECLARED, retry_at=None)


def _declare(declaration: schedules.Declaration, rows: Sequence[Schedule]) -> None:
    """Write a declaration that has changed, or show that the database refuses it."""
    text = declaration.text()
    found = declaration.choose(rows)
    # Written by a worker that still runs older code; this one would fire it too.
    _mark_undeclared(Schedule.objects.filter(pk__in=[other.pk for other in found[1:]]))
    if found and found[0].declared and found[0].declaration == text:
        return
    try:
        with store.transaction():
            _write(declaration, text, back=bool(found) and found[0].broken == NOT_DECLARED)
    except store.OUTAGE:
        raise
    except Exception as error:
        logger.exception(
            "The schedule %r of %s is declared as the database does not take it",
            declaration.name,
            declaration.job_type.name,
        )
        why = NOT_WRITTEN + schedules.why_broken(error, store.connection())
        _show_refused(declaration, found[0] if found else None, why)


def _write(declaration: schedules.Declaration, text: str, *, back: bool) -> None:
    row, _created = schedules.write(declaration, {"declared": True, "declaration": text})
    if back and row.next_run_at is not None:
        # What fell due while it was not declared was not missed.
        now = store.now(store.connection())
        following = ticks.moved_on(schedules.rule_of(row), row.next_run_at, now)
        Schedule.objects.filter(pk=row.pk).update(next_run_at=following)


def _show_refused(declaration: schedules.Declaration, row: Schedule | None, why: str) -> None:
    """Break the row of a declaration that was refused; a row without a rule stands for none.

    The next worker that starts tries again.
    """
    try:
        with store.transaction():
            if row is None:
                row = Schedule(job_name=declaration.job_type.name, name=declaration.name)
                Schedule.objects.bulk_create([row])
            # Seen as it is, or the next look would say what is wrong with no rule at all.
            Schedule.objects.filter(pk=row.pk).update(
                declared=True,
                declaration="",
                broken=why,
                retry_at=None,
                rule_seen=F("rule_hash"),
            )
    except store.OUTAGE:
        raise
    except DatabaseError:
        logger.exception("The schedule %r could not be marked as broken", declaration.name)


def mark_unknown() -> None:
    """Say of the schedules whose job type no live worker knows that they cannot fire."""
    store.mark_unknown_schedules(store.connection(), NO_WORKER, conf.lease)


def run_due(names: Sequence[str], ahead: timedelta = AHEAD) -> float | None:
    """Fire what is due of the schedules of these job types, up to one batch.

    `ahead` is how long it may be until the next look. Return in how many seconds the next one falls
    due: 0 if there may be more already, None if there is none or others hold what is due.
    """
    db = store.connection()
    look = store.look_at_schedules(db, names, ahead)
    mended = look.wrong and store.mend_schedules(db, names, NO_WORKER)
    planned = _plan_edited(names) if look.edited else 0
    if mended or look.edited or (look.due_in is not None and look.due_in <= 0):
        return 0 if _fire_all(names) or planned or mended else None
    return look.due_in


def _fire_all(names: Sequence[str]) -> int:
    """Fire first what no users' code has to be asked for, so that none of it is waited for."""
    asked = [name for name in names if _asks(name)]
    others = [name for name in names if name not in asked]
    return sum(fire(some) for some in (others, asked) if some)


def _asks(name: str) -> bool:
    job_type = registry.find(name)
    return job_type is not None and callable(job_type.options.concurrency_key)


def _plan_edited(names: Sequence[str]) -> int:
    """Work out when schedules run next that are new, or that somebody has edited.

    Return how many were planned.
    """
    planned = 0
    until = time.monotonic() + TIME
    with store.transaction(IDLE_FOR):
        edited = Schedule.objects.filter(job_name__in=names).exclude(rule_seen=F("rule_hash"))
        now = store.now(store.connection())
        # What is new may wait for another try of its first run.
        edited = edited.exclude(rule_seen=0, retry_at__gt=now)
        for row in edited.select_for_update(skip_locked=True, no_key=True)[:BATCH]:
            schedules.plan(row, now)
            planned += 1
            if time.monotonic() > until:
                break
    return planned


class Verdict(NamedTuple):
    """Hold what is to be made of one due schedule: jobs, and where it stands then."""

    ticks: list[store.Tick]
    skipped: list[datetime]
    due: ticks.Due


def fire(names: Sequence[str], limit: int = BATCH) -> int:
    """Fire up to `limit` due schedules in one transaction; return how many were found.

    A look is over in a moment, however much there is to make up for, and makes one job at least:
    what is left is due at the next one. One that the database refuses is found out by firing them
    one by one; it is broken then, and stops no other.
    """
    db = store.connection()
    with store.transaction(IDLE_FOR):
        locked = store.lock_due_schedules(db, names, limit)
        made = _fire_locked(db, _shares(locked)) if locked else []
    queues = sorted({job.queue_name for job in made})
    notifications.notify(store.connection(), notifications.READY, queues)
    tell_enqueued(made)
    return len(locked)


def _shares(locked: Sequence[store.DueSchedule]) -> dict[int, int]:
    """Return how many ticks this look takes of each schedule, in the order to fire them.

    That is by chance, so that none is always the one for which no room or time is left; but those
    first that were quick before.
    """
    fitting: list[store.DueSchedule] = []
    size = 0
    by_chance = random.sample(locked, len(locked))
    for due in sorted(by_chance, key=lambda due: due.id not in _quick):
        size += due.size
        if fitting and size > BYTES:
            break
        fitting.append(due)
    jobs, size = JOBS // len(fitting), BYTES // len(fitting)
    return {due.id: max(1, min(jobs, size // max(due.size, 1))) for due in fitting}


def _fire_locked(db: BaseDatabaseWrapper, shares: Mapping[int, int]) -> list[Job]:
    """Fire locked schedules together or, if the database refuses that, each by itself."""
    try:
        with store.transaction():
            return _fire_together(db, shares)
    except Error as error:
        if not store.is_usable(db):
            # No schedule is to blame for a database that is away.
            raise
        if len(shares) > 1:
            return _fire_one_by_one(db, shares)
        (pk,) = shares
        _break(db, Schedule.objects.get(pk=pk), error)
        return []


def _fire_one_by_one(db: BaseDatabaseWrapper, shares: Mapping[int, int]) -> list[Job]:
    made: list[Job] = []
    until = time.monotonic() + TIME
    for pk, most in shares.items():
        made += _fire_locked(db, {pk: most})
        if time.monotonic() > until:
            break
    return made


def _fire_together(db: BaseDatabaseWrapper, shares: Mapping[int, int]) -> list[Job]:
    """Judge locked schedules by what a later statement reads, insert their jobs and move on."""
    busy = Job.all_objects.filter(pk=OuterRef("last_job"), finished_at__isnull=True)
    found = Schedule.objects.annotate(busy=Exists(busy), now=ClockNow()).in_bulk(list(shares))
    verdicts: dict[int, Verdict] = {}
    until = time.monotonic() + TIME
    for pk, most in shares.items():
        started = time.monotonic()
        # What users' code has broken for all is found out by the next ones, each by itself.
        savepoint = store.transaction() if len(shares) == 1 else nullcontext()
        try:
            with savepoint:
                verdict = _judge(found[pk], most, until)
            verdicts[pk] = verdict
        except (Exception, SystemExit) as error:  # noqa: BLE001 - told in `broken`
            _break(db, found[pk], error)
        _note_time(pk, time.monotonic() - started)
        if time.monotonic() > until:
            break
    new = [tick for verdict in verdicts.values() for tick in verdict.ticks]
    # Jobs that are due at the same time start in the order in which they are made.
    new.sort(key=attrgetter("nominal", "schedule"))
    pairs = list(zip(new, store.insert_ticks(db, new), strict=True))
    made: list[Job] = []
    latest: dict[int, Job] = {}
    for tick, done in pairs:
        if done is not None:
            job = as_job(db, tick.new, done, schedule_id=tick.schedule, scheduled_for=tick.nominal)
            latest[tick.schedule] = job
            made.append(job)
    store.move_schedules(
        db, [_moved(pk, verdict, latest.get(pk)) for pk, verdict in verdicts.items()]
    )
    return made


def _note_time(pk: int, took: float) -> None:
    if took > QUICK:
        _quick.pop(pk, None)
    else:
        _quick[pk] = None
        if len(_quick) > MOST_QUICK:
            del _quick[next(iter(_quick))]


def _break(db: BaseDatabaseWrapper, row: Any, error: BaseException) -> None:
    """Say why a row cannot fire, and once in the log; try it again if that may pass by itself."""
    why = schedules.why_broken(error, db)
    if why != row.broken:
        logger.error("The schedule %s cannot fire", row, exc_info=error)
    retry = schedules.RETRY if _is_right(row) and schedules.may_pass(error) else None
    store.break_schedule(db, row.pk, why, retry)


def _is_right(row: Any) -> bool:
    """Tell whether a row says nothing wrong by itself, whatever users' code makes of it."""
    try:
        _checked_rule(row)
        schedules.check_arguments(row)
    except Exception:  # noqa: BLE001 - it has been told
        return False
    return True


def _checked_rule(row: Any) -> ticks.Rule:
    rule = schedules.rule_of(row)
    if not can_be_read(row.next_run_at):
        raise ValueError("next_run_at lies before year 1: edit the rule, and it is worked out anew")
    return rule


def _judge(row: Any, most: int, until: float) -> Verdict:
    """Decide over the due ticks of a row, so many at most; raises whatever is wrong with it.

    `until` is when no more jobs are made than one.
    """
    rule = _checked_rule(row)
    if not row.enabled:
        following = ticks.moved_on(rule, row.next_run_at, row.now)
        return Verdict([], [], ticks.Due([], following))
    due = ticks.due_ticks(rule, row.next_run_at, row.now, most=most)
    run: list[datetime] = due.run
    skipped: list[datetime] = []
    if row.overlap == Overlap.SKIP:
        # The job of a tick that runs now has not ended when the next one is due.
        run, skipped = ([], due.run) if row.busy else (due.run[:1], due.run[1:])
    made = _made_until(until, schedules.tick_jobs(row, run, row.now))
    if len(made) < len(run):
        due = due._replace(next_run_at=run[len(made)])
    return Verdict(made, skipped, due)


def _made_until(until: float, jobs: Iterable[store.Tick]) -> list[store.Tick]:
    made: list[store.Tick] = []
    for job in jobs:
        made.append(job)
        if time.monotonic() > until:
            break
    return made


def _moved(pk: int, verdict: Verdict, job: Job | None) -> store.Moved:
    judged = [*verdict.skipped, *(tick.nominal for tick in verdict.ticks)]
    return store.Moved(
        id=pk,
        next_run_at=verdict.due.next_run_at,
        last_tick=max(judged, default=None),
        last_run_at=None if job is None else job.scheduled_for,
        last_job=None if job is None else job.pk,
        skipped=len(verdict.skipped),
        last_skipped_at=max(verdict.skipped, default=None),
    )
