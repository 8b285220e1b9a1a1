"""The tables. What may happen to their rows is written in `store.py`."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, ClassVar

from asgiref.sync import sync_to_async
from django.conf import settings
from django.core.exceptions import ValidationError
from django.db import models, transaction
from django.db.models import F, Q, Value
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _

from django_durable.choices import (
    FINISHED,
    AttemptOutcome,
    CatchUp,
    DeathReason,
    JobStatus,
    Overlap,
    StepKind,
    StepStatus,
)
from django_durable.durations import parse_rate
from django_durable.fields import MomentField, OptionalOneToOneField, PayloadField, SpanField
from django_durable.querysets import (
    AllDeadLettersManager,
    AllJobsManager,
    DeadLetterManager,
    DurableManager,
    JobManager,
    JobQuerySet,
    QueueManager,
    ScheduleManager,
)
from django_durable.uuid7 import uuid7

# What is true of a job that waits, for a worker or parked.
_BETWEEN_RUNS = Q(lease_until__isnull=True, claimer__isnull=True, finished_at__isnull=True)


class Job(models.Model):
    """Hold one request to run a job type, from `enqueue` to its recorded end."""

    Status = JobStatus

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    name = models.CharField(_("job type"), max_length=255)
    queue_name = models.CharField(_("queue"), max_length=100, default="default")
    requires = models.CharField(_("requires"), max_length=100, null=True, blank=True)
    priority = models.SmallIntegerField(_("priority"), default=0, db_default=0)
    # Which claim scan finds the row: a hash of (queue, name, requires, priority, resumed), which a
    # trigger sets (migration 0003): a generated column would be judged anew in every update.
    lane = models.BigIntegerField(editable=False)
    status = models.CharField(
        _("status"), max_length=10, choices=JobStatus, default=JobStatus.READY, db_default="READY"
    )

    args = PayloadField(_("arguments"), default=list, db_default=Value("[]", models.TextField()))
    kwargs = PayloadField(
        _("keyword arguments"), default=dict, db_default=Value("{}", models.TextField())
    )
    metadata = models.JSONField(
        _("metadata"), default=dict, db_default=Value({}, models.JSONField())
    )
    # The options given to `using` that the job type does not answer for: timeout, backoff.
    options = models.JSONField(_("options"), default=dict, db_default=Value({}, models.JSONField()))
    return_value = PayloadField(_("result"), null=True, blank=True)

    attempt = models.IntegerField(_("attempt"), default=0, db_default=0)
    max_attempts = models.IntegerField(_("maximum of attempts"), null=True, default=3)
    rejections = models.IntegerField(_("rejections"), default=0, db_default=0)
    # True from the first park of an attempt to its end: a claim then goes on with the same attempt.
    resumed = models.BooleanField(default=False, db_default=False)

    # `run_after` is the job's place in the order; `due_at` is when a claim may take it: the same
    # while READY, the wake-up (or none) while WAITING, none while RUNNING and for ever after.
    run_after = MomentField(_("run after"), db_default=Now())
    due_at = MomentField(_("due"), null=True, db_default=Now())
    enqueued_at = models.DateTimeField(_("enqueued"), db_default=Now())
    # With `start_within`: when it is too late for the first start.
    start_by = models.DateTimeField(_("start by"), null=True, blank=True)
    started_at = models.DateTimeField(_("started"), null=True, blank=True)
    claimed_at = models.DateTimeField(_("claimed"), null=True, blank=True)
    finished_at = models.DateTimeField(_("finished"), null=True, blank=True)
    # Set when the whole tree has ended; `keep_for` says of a root that may have a tree how long
    # that is kept then, since whoever ends last does not know the root's job type.
    kept_until = models.DateTimeField(_("kept until"), null=True, blank=True)
    keep_for = models.DurationField(null=True, editable=False)

    # The fence: every claim raises it, nothing clears it, and every write of a worker names it.
    epoch = models.BigIntegerField(default=0, db_default=0)
    lease_until = models.DateTimeField(_("lease until"), null=True, blank=True)
    worker = models.CharField(_("worker"), max_length=200, null=True, blank=True)
    claimer = models.UUIDField(null=True, blank=True)

    # No constraints in the database for these two: a plain job must not pay for checking them.
    parent = models.ForeignKey(
        "self",
        models.PROTECT,
        null=True,
        blank=True,
        related_name="children",
        db_constraint=False,
        db_index=False,
    )
    # Itself for a root.
    root = models.ForeignKey(
        "self",
        models.DO_NOTHING,
        null=True,
        related_name="+",
        db_constraint=False,
        db_index=False,
    )
    depth = models.SmallIntegerField(_("depth"), default=0, db_default=0)
    idempotency_key = models.CharField(_("idempotency key"), max_length=500, null=True, blank=True)
    delivery_id = models.UUIDField(null=True, blank=True)
    # The id of the job that a fork was made from, which may be gone by now.
    forked_from = models.UUIDField(_("forked from"), null=True, blank=True)
    concurrency_key = models.TextField(_("concurrency key"), null=True, blank=True)
    # A hash of the key, of fixed size in an index entry; set by the same trigger.
    key_hash = models.BigIntegerField(null=True, editable=False)
    # False only for a lone job that nobody waits for: its completion then needs no second look.
    awaited = models.BooleanField(default=False, db_default=False)
    # True while the job counts against its concurrency key.
    key_held = models.BooleanField(default=False, db_default=False)

    # The signal that a parked job waits for; no other one wakes it.
    waits_for = models.TextField(null=True, blank=True)

    # No constraint in the database: a plain job must not pay for checking it. A deletion locks the
    # schedule first, so none that fires can leave a job behind that points nowhere.
    schedule = models.ForeignKey(
        "Schedule",
        models.SET_NULL,
        null=True,
        blank=True,
        related_name="jobs",
        db_constraint=False,
        db_index=False,
        verbose_name=_("schedule"),
    )
    scheduled_for = models.DateTimeField(_("scheduled for"), null=True, blank=True)

    cancel_requested_at = models.DateTimeField(null=True, blank=True)
    cancel_reason = models.TextField(_("reason of the cancellation"), default="", db_default="")
    progress = models.JSONField(
        _("progress"), default=dict, db_default=Value({}, models.JSONField())
    )

    # What no other row tells of its history (`inspection.timeline`): waits for other jobs, that it
    # was handed back, rejected or made due. None for most.
    events = models.JSONField(null=True, editable=False)

    objects = JobManager()
    all_objects = AllJobsManager()

    # Set by `enqueue` on what it returns.
    created: bool = False

    class Meta:
        verbose_name = _("job")
        verbose_name_plural = _("jobs")
        base_manager_name = "all_objects"
        default_permissions = ("view", "delete")
        permissions = (
            ("view_payload", _("Can view arguments, results, errors and tracebacks")),
            ("cancel_job", _("Can cancel jobs")),
            ("retry_job", _("Can run jobs now")),
            ("replay_job", _("Can replay dead jobs")),
            ("edit_payload", _("Can give jobs other arguments")),
            ("signal_job", _("Can send signals to jobs")),
            ("fork_job", _("Can make jobs like others, with their checkpoints")),
            ("enqueue_job", _("Can enqueue jobs")),
        )
        constraints: ClassVar[Any] = [
            models.UniqueConstraint(
                fields=["name", "idempotency_key"],
                condition=Q(idempotency_key__isnull=False),
                name="durable_job_key",
            ),
            models.UniqueConstraint(
                fields=["schedule", "scheduled_for"],
                condition=Q(schedule__isnull=False),
                name="durable_job_tick",
            ),
            # Few constraints of few words: PostgreSQL reads all of them again for each statement.
            models.CheckConstraint(
                condition=_BETWEEN_RUNS & Q(status="READY", due_at__isnull=False)
                | _BETWEEN_RUNS & Q(status="WAITING")
                | Q(
                    status="RUNNING",
                    due_at__isnull=True,
                    lease_until__isnull=False,
                    claimer__isnull=False,
                    finished_at__isnull=True,
                )
                | Q(
                    status__in=["SUCCESSFUL", "DEAD", "CANCELLED"],
                    due_at__isnull=True,
                    lease_until__isnull=True,
                    claimer__isnull=True,
                    finished_at__isnull=False,
                ),
                name="durable_job_state",
            ),
            models.CheckConstraint(
                condition=Q(attempt__gte=0, rejections__gte=0, depth__gte=0)
                & Q(priority__range=(-100, 100))
                & (Q(max_attempts__isnull=True) | Q(attempt__lte=F("max_attempts"))),
                name="durable_job_numbers",
            ),
        ]
        indexes: ClassVar[Any] = [
            # A plain job's life enters the primary key and the next two; the others don't hold it.
            models.Index(
                fields=["lane", "due_at", "id"],
                # One that was parked with its key in hand needs no other to go on.
                condition=Q(due_at__isnull=False) & (Q(key_hash__isnull=True) | Q(key_held=True)),
                name="durable_job_due_idx",
            ),
            models.Index(
                fields=["status", "kept_until"],
                condition=Q(due_at__isnull=True),
                name="durable_job_state_idx",
            ),
            models.Index(
                fields=["priority", "key_hash", "lane", "due_at", "id"],
                condition=Q(due_at__isnull=False, key_hash__isnull=False, key_held=False),
                name="durable_job_keyed_idx",
            ),
            # Its condition is another, so that the planner can't take one index for the other.
            models.Index(
                fields=["priority", "due_at", "id"],
                condition=Q(due_at__isnull=False, concurrency_key__isnull=False, key_held=False),
                name="durable_job_keyed_due_idx",
            ),
            models.Index(
                fields=["key_hash"], condition=Q(key_held=True), name="durable_job_held_idx"
            ),
            models.Index(
                fields=["start_by"],
                condition=Q(start_by__isnull=False, due_at__isnull=False, started_at__isnull=True),
                name="durable_job_start_by_idx",
            ),
            models.Index(
                fields=["parent"],
                condition=Q(parent__isnull=False),
                name="durable_job_parent_idx",
            ),
            models.Index(
                fields=["root"], condition=Q(parent__isnull=False), name="durable_job_root_idx"
            ),
            models.Index(
                fields=["forked_from"],
                condition=Q(forked_from__isnull=False),
                name="durable_job_forked_from_idx",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.name} {self.pk}"

    @property
    def is_finished(self) -> bool:
        """Tell whether the job has ended, in whatever way."""
        return self.status in FINISHED

    @property
    def delivery_key(self) -> str:
        """Return the key to hand to outside services: a replay keeps that of what it replays."""
        return str(self.delivery_id or self.pk)

    @property
    def blocked_on(self) -> str:
        """Say in a sentence why the job does not run now, "" if it runs or has ended.

        Costs a few queries; `inspection.blocked_on_many` costs as many for a whole page.
        """
        from django_durable import inspection

        return inspection.blocked_on(self)

    def result(self, timeout: float | timedelta | None = None) -> Any:
        """Wait until the job has ended and return its value.

        `timeout` is in seconds or a timedelta; None waits for ever. Raises `JobFailed`,
        `JobCancelled`, `TimeoutError`, or `Job.DoesNotExist` when retention has removed it. Works
        in any process; waiting holds no transaction.
        """
        from django_durable import results

        return results.wait(self, timeout)

    async def aresult(self, timeout: float | timedelta | None = None) -> Any:
        """Do what `result` does, from async code."""
        from django_durable import results

        return await results.await_(self, timeout)

    def cancel(self, reason: str = "", tree: bool = True) -> str:
        """Cancel the job, with `tree` all its unfinished descendants too.

        Returns "cancelled" (it waited and never runs again), "requested" (it runs, and learns of
        it at its next durable verb) or "finished" (too late). Part of the caller's transaction.
        """
        from django_durable import operations

        outcome = operations.cancel(self, reason=reason, tree=tree)
        self._reread()
        return outcome

    async def acancel(self, reason: str = "", tree: bool = True) -> str:
        """Do what `cancel` does, from async code."""
        outcome: str = await sync_to_async(self.cancel)(reason, tree)
        return outcome

    def run_now(self) -> bool:
        """End the delay or backoff of a READY job; return whether it had one."""
        from django_durable import operations

        changed = operations.run_now([self], alias=self._state.db)
        self._reread()
        return bool(changed)

    def signal(self, name: str, payload: Any = None) -> bool:
        """Send the job a named value, for its `wait_for_signal`; False when it has ended.

        The latest value of a name counts. Part of the caller's transaction. Raises `PayloadError`
        for a payload that can't be stored and `Job.DoesNotExist` when the job is gone.
        """
        from django_durable import operations

        return operations.send_signal(self, name, payload)

    async def asignal(self, name: str, payload: Any = None) -> bool:
        """Do what `signal` does, from async code."""
        delivered: bool = await sync_to_async(self.signal)(name, payload)
        return delivered

    def fork(
        self,
        from_step: str | None = None,
        args: Sequence[Any] | None = None,
        kwargs: dict[str, Any] | None = None,
    ) -> Job:
        """Make a new job like this one, afresh or with the checkpoints earned before a step.

        The key stays where it is; this job is untouched. Raises `ValueError` for a step that it
        has not recorded, `DurableError` for any while its undo job has not ended, and
        `Job.DoesNotExist` when retention has given it up. Part of the caller's transaction, until
        whose end this job can't end where checkpoints are copied: its undo job has to see them.
        """
        from django_durable import operations

        return operations.fork(self, from_step=from_step, args=args, kwargs=kwargs)

    async def afork(
        self,
        from_step: str | None = None,
        args: Sequence[Any] | None = None,
        kwargs: dict[str, Any] | None = None,
    ) -> Job:
        """Do what `fork` does, from async code."""
        job: Job = await sync_to_async(self.fork)(from_step, args, kwargs)
        return job

    def tree(self) -> JobQuerySet:
        """Return the whole tree that the job belongs to, its root included."""
        jobs: JobQuerySet = Job.all_objects.using(self._state.db)
        return jobs.filter(Q(pk=self.root_id) | Q(root_id=self.root_id, parent__isnull=False))

    def delete(self, using: str | None = None, keep_parents: bool = False) -> Any:
        """Delete a root whose whole tree has ended, with all of it; `ProtectedError` otherwise.

        So, too, while a live job of another tree has awaited it, or one of its tree. Foreign keys
        of other models to it have their `on_delete`.
        """
        return Job.all_objects.using(using or self._state.db).filter(pk=self.pk).delete()

    def _reread(self) -> None:
        """Take over what the database says now, so that the instance in hand isn't stale."""
        self.refresh_from_db(using=self._state.db)


class Await(models.Model):
    """Say that a parked job waits for the end of another; the ending deletes the row."""

    waiter = models.ForeignKey(Job, models.CASCADE, related_name="+", db_index=False)
    awaited = models.ForeignKey(Job, models.CASCADE, related_name="+")

    class Meta:
        default_permissions = ()
        constraints: ClassVar[Any] = [
            models.UniqueConstraint(fields=["waiter", "awaited"], name="durable_await_once")
        ]

    def __str__(self) -> str:
        return f"{self.waiter_id} waits for {self.awaited_id}"


class Hold(models.Model):
    """Say that a job has awaited one of another tree, which is kept while the waiter lives.

    `awaited` is the root of that tree.

    No constraints in the database: every deleted job would pay for checking them.
    """

    waiter = models.ForeignKey(
        Job, models.CASCADE, related_name="+", db_index=False, db_constraint=False
    )
    awaited = models.ForeignKey(Job, models.CASCADE, related_name="+", db_constraint=False)

    class Meta:
        default_permissions = ()
        constraints: ClassVar[Any] = [
            models.UniqueConstraint(fields=["waiter", "awaited"], name="durable_hold_once")
        ]

    def __str__(self) -> str:
        return f"{self.awaited_id} is kept for {self.waiter_id}"


class Step(models.Model):
    """Hold one checkpoint: what a workflow has earned, or what it waits for."""

    Kind = StepKind
    Status = StepStatus

    job = models.ForeignKey(Job, models.CASCADE, related_name="steps", db_index=False)
    kind = models.CharField(_("kind"), max_length=12, choices=StepKind)
    name = models.CharField(_("name"), max_length=255)
    ordinal = models.PositiveIntegerField(_("ordinal"))
    status = models.CharField(_("status"), max_length=9, choices=StepStatus)
    value = PayloadField(_("value"), null=True, blank=True)
    error_class = models.TextField(_("error class"), default="", db_default="")
    message = models.TextField(_("message"), default="", db_default="")
    started_at = models.DateTimeField(_("started"))
    finished_at = models.DateTimeField(_("finished"), null=True, blank=True)
    wake_at = models.DateTimeField(_("wakes"), null=True, blank=True)
    # The failed tries of a step with a policy of its own.
    tries = models.PositiveIntegerField(_("failed tries"), default=0, db_default=0)
    child = models.ForeignKey(
        Job, models.SET_NULL, null=True, blank=True, related_name="+", db_constraint=False
    )
    # How to take the step back: the step function's name, the call, and whether it was done.
    undo_name = models.TextField(null=True, blank=True)
    undo_call = PayloadField(null=True, blank=True)
    compensated = models.BooleanField(default=False, db_default=False)

    objects = DurableManager["Step"]()

    class Meta:
        verbose_name = _("step")
        verbose_name_plural = _("steps")
        default_permissions = ("view",)
        ordering = ("job", "ordinal")
        constraints: ClassVar[Any] = [
            models.UniqueConstraint(fields=["job", "kind", "name"], name="durable_step_once")
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


class Signal(models.Model):
    """Hold the latest value of one name that was sent to a job."""

    job = models.ForeignKey(Job, models.CASCADE, related_name="signals", db_index=False)
    name = models.CharField(_("name"), max_length=255)
    payload = PayloadField(_("payload"), null=True, blank=True)
    received_at = models.DateTimeField(_("received"))

    objects = DurableManager["Signal"]()

    class Meta:
        verbose_name = _("signal")
        verbose_name_plural = _("signals")
        default_permissions = ("view",)
        ordering = ("job", "received_at")
        constraints: ClassVar[Any] = [
            models.UniqueConstraint(fields=["job", "name"], name="durable_signal_once")
        ]

    def __str__(self) -> str:
        return self.name


class Attempt(models.Model):
    """Record one attempt that did not succeed."""

    Outcome = AttemptOutcome

    job = models.ForeignKey(Job, models.CASCADE, related_name="attempts", db_index=False)
    number = models.PositiveIntegerField(_("number"))
    worker = models.CharField(_("worker"), max_length=200, default="")
    started_at = models.DateTimeField(_("started"), null=True)
    finished_at = models.DateTimeField(_("finished"))
    outcome = models.CharField(_("outcome"), max_length=10, choices=AttemptOutcome)
    error_class = models.TextField(_("error class"), default="")
    message = models.TextField(_("message"), default="")
    traceback = models.TextField(_("traceback"), default="")

    objects = DurableManager["Attempt"]()

    class Meta:
        verbose_name = _("attempt")
        verbose_name_plural = _("attempts")
        default_permissions = ("view",)
        ordering = ("job", "number")
        constraints: ClassVar[Any] = [
            models.UniqueConstraint(fields=["job", "number"], name="durable_attempt_once")
        ]

    def __str__(self) -> str:
        return f"attempt {self.number} of {self.job_id}"


class DeadLetter(models.Model):
    """Record that a job will not be tried again, and why, to inspect and replay."""

    Reason = DeathReason

    job = OptionalOneToOneField(Job, models.CASCADE, related_name="dead_letter")
    reason = models.CharField(_("reason"), max_length=12, choices=DeathReason)
    error_class = models.TextField(_("error class"), default="")
    message = models.TextField(_("message"), default="")
    traceback = models.TextField(_("traceback"), default="")
    died_at = models.DateTimeField(_("died"))
    attempt_count = models.PositiveIntegerField(_("attempts"))
    replayed_as = models.OneToOneField(
        Job, models.SET_NULL, null=True, blank=True, related_name="replay_of"
    )
    replayed_at = models.DateTimeField(_("replayed"), null=True, blank=True)
    replayed_by = models.CharField(_("replayed by"), max_length=200, default="", blank=True)
    # When `on_dead_letter` is (next) to be called; none once it has returned or there is no hook.
    hook_due_at = models.DateTimeField(null=True, blank=True)

    objects = DeadLetterManager()
    all_objects = AllDeadLettersManager()

    class Meta:
        verbose_name = _("dead letter")
        verbose_name_plural = _("dead letters")
        default_permissions = ("view", "delete")
        indexes: ClassVar[Any] = [
            models.Index(
                fields=["hook_due_at"],
                condition=Q(hook_due_at__isnull=False),
                name="durable_dead_hook_idx",
            ),
            models.Index(fields=["-died_at"], name="durable_dead_died_idx"),
        ]

    def __str__(self) -> str:
        return f"dead letter of {self.job_id}"

    def replay(
        self,
        args: Sequence[Any] | None = None,
        kwargs: dict[str, Any] | None = None,
        from_step: str | None = None,
    ) -> Job:
        """Make a new READY job of the dead one, with its payload unless another is given.

        It resumes: checkpoints that succeeded are copied, except compensated ones and those from
        `from_step` on; with a new payload and no `from_step`, none. The new job takes the
        idempotency key over, and the record is marked, in one transaction (the caller's, if there
        is one). Raises `AlreadyReplayed` the second time, also in a race, `DeadLetter.DoesNotExist`
        when retention has given the job up, and for what is given `TypeError` and `PayloadError` as
        `enqueue` does.
        """
        from django_durable import operations

        return operations.replay(self, args=args, kwargs=kwargs, from_step=from_step)


def validate_rate(text: str) -> None:
    """Raise `ValidationError` for a text that is no rate."""
    try:
        parse_rate(text)
    except ValueError as error:
        raise ValidationError(str(error)) from None


class Queue(models.Model):
    """Hold what an operator decided about a queue; a queue without a row has no limits."""

    name = models.CharField(_("name"), max_length=100, primary_key=True)
    paused = models.BooleanField(_("paused"), default=False, db_default=False)
    max_running = models.PositiveIntegerField(_("maximum of running jobs"), null=True, blank=True)
    rate_limit = models.CharField(
        _("rate limit"),
        max_length=20,
        null=True,
        blank=True,
        validators=[validate_rate],
        help_text=_("At most so many attempts start in any window, such as 100/m (s, m, h or d)."),
    )

    objects = QueueManager()

    class Meta:
        verbose_name = _("queue")
        verbose_name_plural = _("queues")
        # None to delete one: that would resume it without the permission to.
        default_permissions = ("view", "add", "change")
        permissions = (("pause_queue", _("Can pause and resume queues")),)
        constraints: ClassVar[Any] = [
            # What the statements of a claim can read.
            models.CheckConstraint(
                condition=Q(rate_limit__isnull=True)
                | Q(rate_limit__regex=r"^0*[1-9][0-9]{0,9}/[smhd]$"),
                name="durable_queue_rate",
            ),
        ]

    def __str__(self) -> str:
        return self.name

    def pause(self) -> bool:
        """Let no more of its jobs start, what runs finishes; return whether it was not paused."""
        from django_durable import operations

        changed = operations.switch_queue(self.name, paused=True, alias=self._state.db)
        self.refresh_from_db(using=self._state.db)
        return changed

    def resume(self) -> bool:
        """Let its jobs start again, at once; return whether it was paused."""
        from django_durable import operations

        changed = operations.switch_queue(self.name, paused=False, alias=self._state.db)
        self.refresh_from_db(using=self._state.db)
        return changed


class Start(models.Model):
    """Say how many attempts one claim started under a rate limit; dropped after its window."""

    # "queue:mail", "type:shop.jobs.send", or "key:" and a hash.
    budget = models.CharField(max_length=300)
    moment = models.DateTimeField()
    starts = models.PositiveIntegerField()
    # Of this budget up to here: the difference of two rows counts what lies between them.
    total = models.BigIntegerField()
    expires_at = models.DateTimeField()

    class Meta:
        default_permissions = ()
        indexes: ClassVar[Any] = [
            models.Index(fields=["budget", "moment", "total"], name="durable_start_budget_idx"),
            models.Index(fields=["expires_at"], name="durable_start_expires_idx"),
        ]

    def __str__(self) -> str:
        return f"{self.starts} of {self.budget}"


def default_timezone() -> str:
    """Return the project's time zone."""
    return str(settings.TIME_ZONE)


class Schedule(models.Model):
    """Make jobs of a type at times: declared in code, or made in the admin or at run time."""

    CatchUp = CatchUp
    Overlap = Overlap

    job_name = models.CharField(_("job type"), max_length=255)
    name = models.CharField(_("name"), max_length=255)
    cron = models.CharField(_("cron expression"), max_length=255, null=True, blank=True)
    every = SpanField(_("every"), null=True, blank=True)
    timezone = models.CharField(_("time zone"), max_length=64, default=default_timezone)
    enabled = models.BooleanField(_("enabled"), default=True, db_default=True)
    starts_at = MomentField(_("starts at"), null=True, blank=True)
    until = MomentField(_("until"), null=True, blank=True)
    catch_up = models.CharField(
        _("catch up"), max_length=4, choices=CatchUp, default=CatchUp.ONE, db_default="one"
    )
    overlap = models.CharField(
        _("overlap"), max_length=5, choices=Overlap, default=Overlap.ALLOW, db_default="allow"
    )
    jitter = SpanField(_("jitter"), null=True, blank=True)
    run_on_create = models.BooleanField(_("run on create"), default=False, db_default=False)
    args = PayloadField(
        _("arguments"), default=list, blank=True, db_default=Value("[]", models.TextField())
    )
    kwargs = PayloadField(
        _("keyword arguments"), default=dict, blank=True, db_default=Value("{}", models.TextField())
    )

    # Nominal times, as the rule names them: of the next tick, and of the latest that made a job.
    next_run_at = MomentField(_("next run"), null=True, blank=True, editable=False)
    last_run_at = MomentField(_("last run"), null=True, blank=True, editable=False)
    declared = models.BooleanField(
        _("declared in code"), default=False, db_default=False, editable=False
    )
    # Why it cannot fire; empty while it can.
    broken = models.TextField(_("broken"), default="", db_default="", editable=False)
    # When it is tried again after an error that may pass by itself.
    retry_at = MomentField(null=True, editable=False)
    skipped = models.PositiveIntegerField(
        _("skipped runs"), default=0, db_default=0, editable=False
    )
    last_skipped_at = MomentField(_("last skipped"), null=True, editable=False)

    # A hash of what decides over `next_run_at`, which a trigger sets (migration 0003), and the
    # value that it was worked out for: whoever edits a row, in whatever way, is noticed by the
    # difference.
    rule_hash = models.BigIntegerField(default=0, db_default=0, editable=False)
    rule_seen = models.BigIntegerField(default=0, db_default=0, editable=False)
    # The latest tick that was judged, run or not: `every` keeps to its grid.
    last_tick = MomentField(null=True, editable=False)
    # The job of the latest tick that ran, and of the latest "run now".
    last_job = models.UUIDField(null=True, editable=False)
    asked_job = models.UUIDField(null=True, editable=False)
    # The declaration that was last written here; a changed one is written again.
    declaration = models.TextField(default="", db_default="", editable=False)

    objects = ScheduleManager()

    class Meta:
        verbose_name = _("schedule")
        verbose_name_plural = _("schedules")
        constraints: ClassVar[Any] = [
            models.UniqueConstraint(fields=["job_name", "name"], name="durable_schedule_name"),
        ]
        indexes: ClassVar[Any] = [
            models.Index(
                fields=["next_run_at"],
                condition=Q(next_run_at__isnull=False, broken=""),
                name="durable_schedule_next_idx",
            ),
            models.Index(
                fields=["jitter"],
                condition=Q(jitter__isnull=False),
                name="durable_schedule_jitter_idx",
            ),
            models.Index(
                fields=["job_name"],
                condition=~Q(rule_seen=F("rule_hash")),
                name="durable_schedule_edit_idx",
            ),
            models.Index(
                fields=["job_name"], condition=~Q(broken=""), name="durable_schedule_broken_idx"
            ),
            models.Index(
                fields=["retry_at"],
                condition=Q(retry_at__isnull=False),
                name="durable_schedule_retry_idx",
            ),
        ]

    def __str__(self) -> str:
        return self.name if self.name == self.job_name else f"{self.job_name} {self.name}"

    def save(
        self, *args: Any, using: str | None = None, update_fields: Any = None, **kwargs: Any
    ) -> None:
        """Store the row, and work out `next_run_at` if what decides over it has changed.

        Of a row that is there already only what people edit is written, unless `update_fields`
        names other columns: workers may have moved it on since it was read. One that this turns
        on does not catch up.
        """
        from django_durable import schedules

        alias = using or schedules.alias_of(self)
        with transaction.atomic(using=alias):
            stored = None if kwargs.get("force_insert") else schedules.lock(self, alias)
            if stored is not None and update_fields is None:
                update_fields = schedules.edited_columns() - self.get_deferred_fields()
            super().save(*args, using=alias, update_fields=update_fields, **kwargs)
            schedules.plan_row(self)
            if stored is not None and not stored.enabled and self.enabled:
                schedules.miss_nothing([self.pk], alias)
                self.refresh_from_db(using=alias, fields=["next_run_at"])

    def delete(self, using: str | None = None, keep_parents: bool = False) -> Any:
        """Delete the schedule; its jobs stay."""
        return Schedule.objects.using(using or self._state.db).filter(pk=self.pk).delete()

    def preview(self, n: int = 5) -> list[datetime]:
        """Return the next n nominal times from now on, in UTC; fewer if there are no more.

        Whether the schedule is enabled does not matter. Raises `ValueError` for a wrong rule.
        """
        from django_durable import schedules

        return schedules.preview(self, n)

    def run_now(self) -> Job:
        """Make a job at once, whatever the rule says, and return it.

        While one that was made so has not started, that one is returned, with `created` False.
        Part of the caller's transaction. Raises `UnknownJob` where this process does not know
        the job type, `TypeError` and `PayloadError` for arguments that don't fit.
        """
        from django_durable import schedules

        return schedules.run_now(self)

    async def arun_now(self) -> Job:
        """Do what `run_now` does, from async code."""
        job: Job = await sync_to_async(self.run_now)()
        return job

    def enable(self) -> bool:
        """Let the schedule fire from its next tick on, not catching up; return if it was off."""
        from django_durable import schedules

        return schedules.switch(self, on=True)

    def disable(self) -> bool:
        """Let the schedule fire no more until it is enabled; return if it was on. Its jobs stay."""
        from django_durable import schedules

        return schedules.switch(self, on=False)


class Worker(models.Model):
    """Show one `manage.py worker` command; nothing that decides over jobs depends on it."""

    incarnation = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    name = models.CharField(_("name"), max_length=200)
    hostname = models.CharField(_("host"), max_length=255, default="")
    pid = models.PositiveIntegerField(_("process"), default=0)
    started_at = models.DateTimeField(_("started"), db_default=Now())
    heartbeat_at = models.DateTimeField(_("heartbeat"), db_default=Now())
    queues = models.JSONField(verbose_name=_("queues"), default=list)
    excluded_queues = models.JSONField(default=list)
    job_names = models.JSONField(verbose_name=_("job types"), default=list)
    capabilities = models.JSONField(verbose_name=_("capabilities"), default=list)
    slots = models.PositiveIntegerField(_("slots"), default=0)
    draining = models.BooleanField(_("draining"), default=False, db_default=False)
    lease = models.DurationField(_("lease"), null=True)

    objects = DurableManager["Worker"]()

    class Meta:
        verbose_name = _("worker")
        verbose_name_plural = _("workers")
        default_permissions = ("view",)
        permissions = (("drain_worker", _("Can drain workers")),)

    def __str__(self) -> str:
        return self.name

    def drain(self) -> bool:
        """Ask the command to stop as SIGTERM does: what runs finishes, nothing more is claimed.

        Returns whether it was not asked before. Part of the caller's transaction.
        """
        from django_durable import operations

        changed = operations.drain_workers([self.pk], alias=self._state.db)
        self.refresh_from_db(using=self._state.db)
        return bool(changed)
