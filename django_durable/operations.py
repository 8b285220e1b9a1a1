"""What people do to jobs, from code, the admin and the commands: one set of rules for all.

Each operation is part of the caller's transaction; what is told of it is told after the commit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.core.exceptions import ObjectDoesNotExist, ValidationError
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import ProtectedError

from django_durable import notifications, payloads, relations, signals, store
from django_durable.choices import UNDO, JobStatus
from django_durable.conf import conf
from django_durable.durations import parse_rate
from django_durable.exceptions import AlreadyReplayed, DurableError
from django_durable.fields import Undecodable
from django_durable.jobtypes import Unset, check_text, registry
from django_durable.journal import check_name
from django_durable.models import DeadLetter, Job, Queue, Worker

if TYPE_CHECKING:
    from django_durable.querysets import DeadLetterQuerySet, JobQuerySet

BATCH = 200


def _connection(alias: str | None) -> BaseDatabaseWrapper:
    wrapper: BaseDatabaseWrapper = connections[alias or conf.database]
    return wrapper


def current_keep() -> store.Keep:
    """Return how long ended jobs are kept, by the settings and the job types of this process."""
    completed: dict[str, timedelta | None] = {}
    dead: dict[str, timedelta | None] = {}
    for name in registry.names():
        options = registry.get(name).options
        if not isinstance(options.keep_completed, Unset):
            completed[name] = options.keep_completed
        if not isinstance(options.keep_dead, Unset):
            dead[name] = options.keep_dead
    return store.Keep(conf.keep_completed, conf.keep_dead, completed, dead)


def cancel(job: Job, *, reason: str = "", tree: bool = True) -> str:
    """Cancel a job; see `Job.cancel`."""
    changed = cancel_ids([job.pk], reason=reason, tree=tree, alias=job._state.db)
    return changed.get(job.pk, "finished")


def cancel_ids(
    ids: Sequence[UUID], *, reason: str = "", tree: bool = True, alias: str | None = None
) -> dict[UUID, str]:
    """Cancel jobs by id; return "cancelled" or "requested" for each that was changed.

    With `tree`, descendants are among them. What had ended already is not.
    """
    db = _connection(alias)
    changed, woken = store.cancel(db, ids, reason=reason, tree=tree, keep=current_keep())
    ended = [change.id for change in changed if change.status is JobStatus.CANCELLED]
    running = [change.id for change in changed if change.status is JobStatus.RUNNING]
    notifications.after_commit(db, notifications.READY, woken)
    if running:
        notifications.after_commit(db, notifications.CANCEL, [notifications.ids_topic(running)])
    if ended:
        notifications.after_commit(db, notifications.ENDED, [notifications.ids_topic(ended)])
        notifications.call_after_commit(db, lambda: _send_cancelled(db, ended))
    outcome = {JobStatus.CANCELLED: "cancelled", JobStatus.RUNNING: "requested"}
    return {change.id: outcome[change.status] for change in changed}


def _send_cancelled(db: BaseDatabaseWrapper, ids: Sequence[UUID]) -> None:
    if signals.job_cancelled.has_listeners(Job):
        for job in Job.all_objects.using(db.alias).filter(pk__in=ids):
            signals.send(signals.job_cancelled, job=job, reason=job.cancel_reason)


def cancel_all(jobs: JobQuerySet, *, reason: str = "") -> int:
    """Cancel the jobs of a queryset in batches, each with its tree; return how many changed."""
    total = 0
    ids = list(jobs.values_list("pk", flat=True))
    for start in range(0, len(ids), BATCH):
        total += len(cancel_ids(ids[start : start + BATCH], reason=reason, alias=jobs.db))
    return total


def run_now(jobs: Iterable[Job], alias: str | None = None, by: str = "") -> int:
    """End the delay or backoff of READY jobs; return for how many there was one to end.

    `by` says who did.
    """
    db = _connection(alias)
    changed = store.run_now(db, [job.pk for job in jobs], by)
    notifications.after_commit(db, notifications.READY, {queue for _job, queue in changed})
    return len(changed)


def replay(
    letter: DeadLetter,
    *,
    args: Sequence[Any] | None = None,
    kwargs: dict[str, Any] | None = None,
    from_step: str | None = None,
    delay: timedelta = timedelta(0),
    by: str = "",
) -> Job:
    """Make a new job of a dead one; see `DeadLetter.replay`. `by` says who did."""
    db = _connection(letter._state.db)
    replayed = store.replay(
        db,
        letter.pk,
        **_given_payload(letter.job, args, kwargs),
        delay=delay,
        by=by,
        copy=from_step is not None or (args is None and kwargs is None),
        copy_before=_row_of(letter.job, from_step),
    )
    if replayed.already:
        raise AlreadyReplayed(f"the dead letter of {letter.job_id} has been replayed already")
    _refuse_while_undoing(letter, replayed.undoing)
    if replayed.id is None:
        raise DeadLetter.DoesNotExist(f"the dead letter {letter.pk} is gone")
    letter.refresh_from_db()
    return _announced(db, replayed)


def check_replay(letter: DeadLetter) -> None:
    """Raise what a replay would raise now, were it not for what it changes."""
    _refuse_while_undoing(letter, store.find_undo(_connection(letter._state.db), letter.job_id))


def _refuse_while_undoing(letter: DeadLetter, undo: UUID | None) -> None:
    if undo is not None:
        raise DurableError(f"{letter.job_id} can be replayed once its undo job {undo} has ended")


def _announced(db: BaseDatabaseWrapper, made: store.Replayed) -> Job:
    job: Job = Job.all_objects.using(db.alias).get(pk=made.id)
    job.created = True
    notifications.after_commit(db, notifications.READY, [made.queue_name])
    if signals.job_enqueued.has_listeners(Job):
        notifications.call_after_commit(db, lambda: signals.send(signals.job_enqueued, job=job))
    return job


def fork(
    job: Job,
    *,
    from_step: str | None = None,
    args: Sequence[Any] | None = None,
    kwargs: dict[str, Any] | None = None,
) -> Job:
    """Make a new job like another one; see `Job.fork`."""
    if UNDO in job.metadata:
        # Two of them would take the same steps back twice.
        raise DurableError(f"the undo job {job.pk} can't be forked; if it dies, replay it")
    if (args is None or kwargs is None) and has_dropped_payload(job):
        raise DurableError(
            f"the arguments of {job.pk} were dropped as it succeeded: give both args and kwargs"
        )
    db = _connection(job._state.db)
    made = store.fork(
        db,
        job.pk,
        **_given_payload(job, args, kwargs),
        copy=from_step is not None,
        copy_before=_row_of(job, from_step),
    )
    if made.undoing is not None:
        raise DurableError(
            f"what {job.pk} has earned can be copied once its undo job {made.undoing} has ended"
        )
    if made.id is None:
        raise Job.DoesNotExist(f"{job} is gone")
    return _announced(db, made)


def has_dropped_payload(job: Job) -> bool:
    """Tell whether a job had arguments before `DURABLE_DROP_COMPLETED_PAYLOADS` emptied them."""
    return "dropped" in job.options


def _row_of(job: Job, from_step: str | None) -> int | None:
    """Return the row of the step of this name, the first one among the job's checkpoints."""
    if from_step is None:
        return None
    found: int | None = (
        job.steps.filter(name=from_step)
        .order_by("ordinal", "pk")
        .values_list("pk", flat=True)
        .first()
    )
    if found is None:
        names = (
            ", ".join(job.steps.order_by("ordinal", "pk").values_list("name", flat=True)[:20])
            or "none"
        )
        raise ValueError(f"{job} has recorded no step {from_step!r}; it has: {names}")
    return found


def send_signal(job: Job, name: str, payload: Any) -> bool:
    """Send a job a named value; see `Job.signal`."""
    check_name(name, "a signal")
    db = _connection(job._state.db)
    text = payloads.encode(payload, where="the payload", limit=conf.max_payload)
    sent = store.send_signal(db, job.pk, name, text)
    if not sent.exists:
        raise Job.DoesNotExist(f"{job} is gone")
    if sent.woken_queue is not None:
        notifications.after_commit(db, notifications.READY, [sent.woken_queue])
    return sent.delivered


def _given_payload(
    job: Job, args: Sequence[Any] | None, kwargs: dict[str, Any] | None
) -> dict[str, str]:
    """Check a call that replaces the job's, in part or whole, and encode what is given."""
    if args is None and kwargs is None:
        return {}
    job_type = registry.find(job.name)
    names: Sequence[str] = ()
    whole = (job.args if args is None else args, job.kwargs if kwargs is None else kwargs)
    if job_type is not None and not any(isinstance(part, Undecodable) for part in whole):
        takes_context = job_type.options.takes_context
        payloads.bind_arguments(job_type.func, *whole, takes_context=takes_context)
        names = payloads.argument_names(job_type.func, takes_context=takes_context)
    texts = payloads.encode_arguments(args or [], kwargs or {}, names=names, limit=conf.max_payload)
    given = {"args": args, "kwargs": kwargs}
    return {name: text for name, text in zip(given, texts, strict=True) if given[name] is not None}


def replay_all(letters: DeadLetterQuerySet, *, rate: str | None = None, by: str = "") -> list[Job]:
    """Replay the dead letters of a queryset that have not been; see `DeadLetterQuerySet.replay`."""
    gap = timedelta(0)
    if rate is not None:
        count, period = parse_rate(rate)
        gap = period / count
    jobs: list[Job] = []
    for letter in letters.filter(replayed_at__isnull=True).order_by("died_at", "pk"):
        try:
            jobs.append(replay(letter, delay=gap * len(jobs), by=by))
        except (AlreadyReplayed, ObjectDoesNotExist):
            # Somebody else was quicker, which is as good.
            continue
        except DurableError:
            # Its undo job is not done yet; the next bulk replay finds it.
            continue
    return jobs


def delete_jobs(jobs: JobQuerySet) -> tuple[int, dict[str, int]]:
    """Delete whole trees that have ended and that no live job has awaited; see `Job.delete`."""
    db = _connection(jobs.db)
    with store.atomic(db):
        ids = list(jobs.values_list("pk", flat=True))
        others: dict[str, int] = {}

        def let_go(members: Sequence[UUID]) -> None:
            others.update(relations.let_go(members, db.alias))
            _refuse_pointed_to(db, ids)

        refused, counts = store.delete_trees(db, ids, before=let_go)
        if refused:
            blocking = set(Job.all_objects.using(db.alias).filter(pk__in=refused))
            raise ProtectedError(
                "only a root whose whole tree has ended, and that no live job has awaited, can be"
                " deleted: cancel it first",
                blocking,
            )
    counts = {**others, **counts}
    return sum(counts.values()), counts


def _refuse_pointed_to(db: BaseDatabaseWrapper, roots: Sequence[UUID]) -> None:
    held = store.pointed_to(db, roots)
    if held:
        raise ProtectedError(
            "rows of other tables point to jobs of the tree: delete them first",
            set(Job.all_objects.using(db.alias).filter(pk__in=held)),
        )


def switch_queue(name: str, *, paused: bool, alias: str | None = None) -> bool:
    """Pause or resume a queue; see `Queue.pause`. Return whether that changed it."""
    check_text("queue_name", name, 100)
    db = _connection(alias)
    queues = Queue.objects.using(db.alias)
    if paused:
        queues.bulk_create([Queue(name=name)], ignore_conflicts=True)
    changed = bool(queues.filter(name=name, paused=not paused).update(paused=paused))
    if changed and not paused:
        notifications.after_commit(db, notifications.READY, [name])
    return changed


def limit_queue(name: str, alias: str | None = None, **limits: int | str | None) -> None:
    """Set limits of a queue; see `QueueManager.limit`."""
    check_text("queue_name", name, 100)
    try:
        Queue(name=name, **limits).clean_fields()
    except ValidationError as error:
        raise ValueError(" ".join(error.messages)) from None
    db = _connection(alias)
    queues = Queue.objects.using(db.alias)
    queues.bulk_create([Queue(name=name)], ignore_conflicts=True)
    if limits and queues.filter(name=name).update(**limits):
        # There may be room for more now; else workers would find it out within a poll.
        notifications.after_commit(db, notifications.READY, [name])


def drain_workers(workers: Sequence[UUID], alias: str | None = None) -> list[UUID]:
    """Ask workers to stop; see `Worker.drain`. Return those that had not been asked before."""
    db = _connection(alias)
    with store.atomic(db):
        found = Worker.objects.using(db.alias).filter(pk__in=workers, draining=False)
        # In one order, so that two who ask the same of many don't wait for each other.
        asked = list(found.order_by("pk").select_for_update().values_list("pk", flat=True))
        Worker.objects.using(db.alias).filter(pk__in=asked).update(draining=True)
    if asked:
        notifications.after_commit(db, notifications.DRAIN, [notifications.ids_topic(asked)])
    return asked


def prune() -> int:
    """Delete every tree whose time is over, in batches of one transaction each; return how many.

    The number is of jobs. It may run beside the workers' sweeps. What a living job has awaited
    stays, as does what somebody holds at that moment.
    """
    db = _connection(None)
    position, deleted, more = store.Position(), 0, True
    while more:
        swept = store.sweep(db, position, alone=False)
        deleted, more = deleted + swept.deleted, swept.more
    return deleted


def count_gone() -> int:
    """Count the jobs that `prune` would delete, what somebody holds at that moment included."""
    return store.count_gone(_connection(None))
