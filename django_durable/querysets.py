"""Reads: the querysets that the admin, the commands and users' own code start from."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from django.db import models, transaction
from django.db.models import Q
from django.db.models.functions import Coalesce

from django_durable.choices import FINISHED, JobStatus
from django_durable.conf import conf

if TYPE_CHECKING:
    from django_durable.jobtypes import JobType
    from django_durable.models import DeadLetter, Job, Queue, Schedule  # noqa: F401 - named in strings

M = TypeVar("M", bound=models.Model)


class ClockNow(models.Func):
    """Read the one clock: the database's, with the offset that the testing kit has set."""

    output_field = models.DateTimeField()

    def as_sql(  # type: ignore[override]
        self, compiler: Any, connection: Any, **extra: Any
    ) -> tuple[str, list[Any]]:
        """Write the clock with the offset of this connection."""
        from django_durable.store.base import clock_offset

        return "(STATEMENT_TIMESTAMP() + %s::interval)", [clock_offset(connection)]


class IsHeld(models.Func):
    """Tell of the tree of this root whether it is kept for a live job that has awaited one of it.

    As `sql/held.sql`.
    """

    function = "durable_is_held"
    output_field = models.BooleanField()
    conditional = True


def not_gone(job: str = "") -> Q:
    """Leave out what retention has given up, swept or not; `job` is the way to the job: "job__"."""
    return (
        Q(**{f"{job}kept_until__isnull": True})
        | Q(**{f"{job}kept_until__gt": ClockNow()})
        | Q(IsHeld(Coalesce(f"{job}root_id", f"{job}pk")))
    )


class DurableManager(models.Manager[M]):
    """Read from `DURABLE_DATABASE`."""

    def get_queryset(self) -> models.QuerySet[M]:
        """Start a queryset on the right database."""
        queryset = super().get_queryset()
        return queryset if self._db else queryset.using(conf.database)


class JobQuerySet(models.QuerySet["Job"]):
    """Name the sets of jobs that people ask for."""

    def ready(self) -> JobQuerySet:
        """Return the jobs that wait for a worker, due or not."""
        return self.filter(status=JobStatus.READY)

    def running(self) -> JobQuerySet:
        """Return the jobs that a worker holds."""
        return self.filter(status=JobStatus.RUNNING)

    def waiting(self) -> JobQuerySet:
        """Return the parked jobs."""
        return self.filter(status=JobStatus.WAITING)

    def dead(self) -> JobQuerySet:
        """Return the jobs that ended with a dead letter."""
        return self.filter(status=JobStatus.DEAD)

    def finished(self) -> JobQuerySet:
        """Return the jobs that have ended, in whatever way."""
        return self.filter(status__in=FINISHED)

    def in_queue(self, queue_name: str) -> JobQuerySet:
        """Return the jobs of one queue."""
        return self.filter(queue_name=queue_name)

    def by_key(self, job_type: JobType | str, key: str) -> JobQuerySet:
        """Return the job that holds this idempotency key of the job type, if any.

        A job type stands for its aliases too, since old rows have the old name; a text for itself.
        """
        names = [job_type] if isinstance(job_type, str) else [job_type.name, *job_type.aliases]
        return self.filter(name__in=names, idempotency_key=key)

    def kept(self) -> JobQuerySet:
        """Leave out what retention has given up, swept or not."""
        return self.filter(not_gone())

    def cancel(self, reason: str = "") -> int:
        """Cancel all jobs of the set, each with its tree, in batches; return how many changed.

        Those that wait are cancelled at once, running ones get the request, ended ones stay.
        """
        from django_durable import operations

        return operations.cancel_all(self, reason=reason)

    def delete(self) -> tuple[int, dict[str, int]]:
        """Delete whole trees that have ended; `ProtectedError`, and nothing, if one lives."""
        from django_durable import operations

        return operations.delete_jobs(self)


class JobManager(DurableManager["Job"].from_queryset(JobQuerySet)):  # type: ignore[misc]
    """Read the jobs that retention has not given up."""

    def get_queryset(self) -> JobQuerySet:
        """Start from the kept jobs."""
        queryset: JobQuerySet = super().get_queryset()
        return queryset.kept()


class AllJobsManager(DurableManager["Job"].from_queryset(JobQuerySet)):  # type: ignore[misc]
    """Read every job row there is."""


class DeadLetterQuerySet(models.QuerySet["DeadLetter"]):
    """Name the sets of dead letters that people ask for."""

    def replay(self, rate: str | None = None) -> list[Job]:
        """Replay all that have not been replayed; return the new jobs.

        `rate`, such as "50/s", spreads their `run_after`. Each replay is one transaction (inside
        the caller's, if there is one); what somebody else replays meanwhile is left out.
        """
        from django_durable import operations

        return operations.replay_all(self, rate=rate)


class DeadLetterManager(DurableManager["DeadLetter"].from_queryset(DeadLetterQuerySet)):  # type: ignore[misc]
    """Read the dead letters of jobs that retention has not given up."""

    def get_queryset(self) -> DeadLetterQuerySet:
        """Start from the kept ones."""
        queryset: DeadLetterQuerySet = super().get_queryset()
        return queryset.filter(not_gone("job__"))


class AllDeadLettersManager(DurableManager["DeadLetter"].from_queryset(DeadLetterQuerySet)):  # type: ignore[misc]
    """Read every dead letter row there is."""


class ScheduleQuerySet(models.QuerySet["Schedule"]):
    """Make schedules that lose no tick, and delete them so that no worker fires one meanwhile."""

    def bulk_create(self, objs: Iterable[Schedule], *args: Any, **kwargs: Any) -> list[Schedule]:
        """Insert the schedules, each with its first run as it is now, as `save` does one by one.

        A wrong rule is found out by the worker that comes to it.
        """
        from django_durable import schedules

        rows = list(objs)
        schedules.plan_new(rows, self.db)
        return super().bulk_create(rows, *args, **kwargs)

    def update(self, **values: Any) -> int:
        """Change the schedules; those that this turns on do not catch up."""
        if values.get("enabled", False) is False or "next_run_at" in values:
            return super().update(**values)
        from django_durable import schedules

        with transaction.atomic(using=self.db):
            off = self.filter(enabled=False, next_run_at__lte=ClockNow())
            missed = list(off.values_list("pk", flat=True))
            changed = super().update(**values)
            schedules.miss_nothing(missed, self.db)
        return changed

    update.alters_data = True  # type: ignore[attr-defined]

    def delete(self) -> tuple[int, dict[str, int]]:
        """Delete the schedules; their jobs stay, without one."""
        with transaction.atomic(using=self.db):
            # A worker that fires one now has the lock until its jobs are there to be unlinked.
            keys = [row.pk for row in self.order_by("pk").select_for_update(of=("self",))]
            locked = self.model._base_manager.using(self.db).filter(pk__in=keys)
            return locked.delete()


class ScheduleManager(DurableManager["Schedule"].from_queryset(ScheduleQuerySet)):  # type: ignore[misc]
    """Read schedules."""


class QueueManager(DurableManager["Queue"]):
    """Read the rows of queues, and decide about queues by name, whether they have one or not."""

    def pause(self, name: str) -> bool:
        """Let no more jobs of the queue start, what runs finishes; return if it was not paused.

        Part of the caller's transaction, as is `resume`. Raises `ValueError` for what can't be
        the name of a queue.
        """
        from django_durable import operations

        return operations.switch_queue(name, paused=True, alias=self._db)

    def resume(self, name: str) -> bool:
        """Let jobs of the queue start again, at once; return whether it was paused."""
        from django_durable import operations

        return operations.switch_queue(name, paused=False, alias=self._db)

    def limit(self, name: str, **limits: int | str | None) -> None:
        """Set `max_running` or `rate_limit` of a queue, both or one; None is no limit.

        Counts across all workers, at once for what starts from now on: what runs goes on. Part of
        the caller's transaction. Raises `ValueError` for what is no limit.
        """
        from django_durable import operations

        if unknown := limits.keys() - {"max_running", "rate_limit"}:
            raise TypeError(f"a queue has no limit {', '.join(sorted(unknown))}")
        operations.limit_queue(name, self._db, **limits)
