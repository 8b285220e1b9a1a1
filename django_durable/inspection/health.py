"""What is wrong, in sentences for an operator."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.migrations.executor import MigrationExecutor
from django.db.models import Count, F, Q

from django_durable import store
from django_durable.conf import conf
from django_durable.durations import format_duration
from django_durable.inspection.blocking import lacking
from django_durable.inspection.liveness import with_liveness
from django_durable.jobtypes import registry
from django_durable.models import DeadLetter, Queue, Schedule, Worker
from django_durable.querysets import ClockNow
from django_durable.store.base import rows

# So many jobs of a lane are counted, and so many sentences are said of one kind.
REACH = 1000
MOST_SENTENCES = 20
# How many schedules without a next run are asked for one.
MOST_ASKED = 100
# Among how many of the newest dead letters, beside those that are allowed, the open ones are found.
NEWEST_LETTERS = 10_000


@dataclass(frozen=True)
class Due:
    """Hold how many due jobs of one queue, job type and requirement wait, and for how long."""

    queue_name: str
    name: str
    requires: str | None
    number: int
    seconds: float
    capped: bool


def problems(
    max_age: timedelta | None = None, min_workers: int = 1, max_dead: int | None = None
) -> list[str]:
    """Return what is wrong, a sentence each; nothing when all is well.

    Looked for are missing migrations, too few living workers, jobs that no living worker serves,
    paused queues with jobs in them, schedules that are broken or overdue, with `max_age` jobs that
    could have started so long ago, and with `max_dead` more dead letters than that which nobody has
    replayed. Costs a few queries whose reach is bounded; raises Django's `OperationalError` when
    the database is away.
    """
    if missing := missing_migrations(store.connection()):
        what = _so_many(missing, "migration of durable is", "migrations of durable are")
        return [f"{what} missing: run `manage.py migrate`"]
    workers = list(with_liveness(Worker.objects.all()).filter(alive=True))
    queues = Queue.objects.in_bulk()
    due = [Due(*row) for row in rows(store.connection(), "count_lanes", reach=REACH)]
    return [
        *_too_few(workers, min_workers),
        *_some(_closed(due, queues)),
        *_some(_unserved(due, workers)),
        *_some(_late(due, queues, max_age)),
        *_some(_broken()),
        *_some(_overdue(workers)),
        *_dead(max_dead),
    ]


def undefined() -> list[str]:
    """Return which due jobs are of types that this project does not define, a sentence each."""
    due = [Due(*row) for row in rows(store.connection(), "count_lanes", reach=REACH)]
    return _some(
        f"{_jobs(each.number, [each])} of {each.name} in queue {each.queue_name!r} left alone:"
        " this project defines no such job type; is its app in INSTALLED_APPS?"
        for each in due
        if registry.find(each.name) is None
    )


def _so_many(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


def _jobs(number: int, counted: list[Due]) -> str:
    if any(each.capped for each in counted):
        return f"{number} jobs or more"
    return "1 job" if number == 1 else f"{number} jobs"


def missing_migrations(db: BaseDatabaseWrapper) -> int:
    """Return how many migrations of the app the database lacks."""
    executor = MigrationExecutor(db)
    targets = [key for key in executor.loader.graph.leaf_nodes() if key[0] == "durable"]
    plan: list[Any] = executor.migration_plan(targets)
    return len(plan)


def _some(sentences: Iterator[str]) -> list[str]:
    """Return the first sentences of a kind, and how many there are more."""
    said = list(sentences)
    if len(said) > MOST_SENTENCES:
        said[MOST_SENTENCES:] = [f"and {len(said) - MOST_SENTENCES} more of this kind"]
    return said


def _too_few(workers: list[Any], wanted: int) -> Iterator[str]:
    serving = sum(not worker.draining for worker in workers)
    if serving >= wanted:
        return
    running = f"only {serving} workers run" if serving > 1 else "only 1 worker runs"
    draining = len(workers) - serving
    besides = f", beside {_so_many(draining, 'that drains', 'that drain')}," if draining else ""
    needed = "1 is" if wanted == 1 else f"{wanted} are"
    yield f"{running if serving else 'no worker runs'}{besides} where {needed} wanted"


def _closed(due: list[Due], queues: dict[str, Queue]) -> Iterator[str]:
    """Tell of queues that let no job start."""
    for name, queue in sorted(queues.items()):
        if not queue.paused and queue.max_running != 0:
            continue
        waiting = [each for each in due if each.queue_name == name]
        if waiting:
            how = "is paused" if queue.paused else "has a maximum of no running job"
            number = sum(each.number for each in waiting)
            yield f"queue {name!r} {how}, and {_jobs(number, waiting)} could start otherwise"


def _unserved(due: list[Due], workers: list[Any]) -> Iterator[str]:
    """Tell of jobs that nobody will ever run, as it stands."""
    if all(worker.draining for worker in workers):
        # That they are too few is a problem of its own, or none at all.
        return
    for each in due:
        lack = lacking(workers, each.name, each.queue_name, each.requires)
        if lack:
            jobs = _jobs(each.number, [each])
            yield (
                f"{jobs} of {each.name} in queue {each.queue_name!r} will not start,"
                f" since no live worker serves {'it' if jobs == '1 job' else 'them'}: {lack}"
            )


def _late(due: list[Due], queues: dict[str, Queue], max_age: timedelta | None) -> Iterator[str]:
    if max_age is None:
        return
    oldest: dict[str, Due] = {}
    for each in due:
        if each.queue_name not in queues or not queues[each.queue_name].paused:
            known = oldest.setdefault(each.queue_name, each)
            oldest[each.queue_name] = max(known, each, key=lambda one: one.seconds)
    for name, each in oldest.items():
        age = timedelta(seconds=each.seconds)
        if age > max_age:
            yield (
                f"the oldest job of queue {name!r}, a {each.name}, could have started"
                f" {format_duration(age)} ago, which is more than {format_duration(max_age)}"
            )


def _broken() -> Iterator[str]:
    broken = Schedule.objects.filter(enabled=True).exclude(broken="").order_by("job_name", "name")
    for row in broken.only("job_name", "name", "broken"):
        yield f"schedule {row.name!r} of {row.job_name} cannot fire: {row.broken}"


def _overdue(workers: list[Any]) -> Iterator[str]:
    """Tell of schedules that some worker should have fired, or planned."""
    if not workers:
        # That is a problem of its own, or none at all.
        return
    patience = 5 * conf.poll_interval + timedelta(minutes=1)
    able = Schedule.objects.filter(enabled=True, broken="").order_by("job_name", "name")
    for row in able.filter(next_run_at__lt=ClockNow() - patience)[:REACH]:
        late = format_duration(patience)
        yield f"schedule {row.name!r} of {row.job_name} should have run more than {late} ago"
    going_on = Q(until=None) | Q(until__gt=ClockNow())
    # Those whose end is still to come may have had their last run: each has to be asked.
    unplanned = able.filter(going_on, next_run_at=None)
    for row in unplanned.order_by(F("until").asc(nulls_first=True), "pk")[:MOST_ASKED]:
        with suppress(ValueError):
            if row.preview(1):
                yield f"schedule {row.name!r} of {row.job_name} has no next run"


def _dead(most: int | None) -> Iterator[str]:
    if most is None:
        return
    reach = NEWEST_LETTERS + most
    newest = DeadLetter.objects.order_by("-died_at")[:reach]
    found = newest.aggregate(seen=Count("pk"), open=Count("pk", filter=Q(replayed_at__isnull=True)))
    if found["open"] > most:
        more = "or more " if found["seen"] == reach else ""
        letters = _so_many(found["open"], f"dead letter {more}has", f"dead letters {more}have")
        yield f"{letters} not been replayed: more than {most}"
