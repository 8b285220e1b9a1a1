"""From a call of a job type to stored rows, and what is told of them after the commit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import timedelta
from functools import cache
from itertools import groupby
from typing import Any, overload

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models.base import ModelState

from django_durable import aside, notifications, payloads, signals, store
from django_durable.choices import JobStatus, OnDuplicate
from django_durable.conf import conf
from django_durable.exceptions import DuplicateJob
from django_durable.jobtypes import Call, Options, concurrency_key_text
from django_durable.models import Job

NOW = timedelta(0)
BATCH = 2000

Part = tuple[Call, Sequence[Any], Mapping[str, Any]]
Entry = tuple[store.NewJob, store.Enqueued]


class Template:
    """Hold what all jobs of one call have in common, worked out once."""

    def __init__(self, call: Call) -> None:
        # Read once: each look asks Django's settings.
        self.options = options = call.job_type.options
        overrides = call.overrides

        def value(name: str) -> Any:
            return overrides[name] if name in overrides else getattr(options, name)

        run_after = overrides.get("run_after")
        is_delay = isinstance(run_after, timedelta)
        self._func = call.job_type.func
        self._takes_context = options.takes_context
        self._names = payloads.argument_names(self._func, takes_context=self._takes_context)
        self.limit = conf.max_payload
        self._key = value("concurrency_key")
        # Jobs of equal groups can be stored by one statement.
        self.group = (
            call.job_type.name,
            value("queue_name"),
            value("requires"),
            value("priority"),
            overrides.get("metadata", {}),
            _stored_options(overrides, options),
            value("max_attempts"),
            None if is_delay else run_after,
            run_after if is_delay else NOW,
            overrides.get("on_duplicate", OnDuplicate.RETURN_EXISTING),
        )
        self._shared: tuple[Any, ...] = (*self.group, overrides.get("idempotency_key"))

    @property
    def is_streamable(self) -> bool:
        """Tell whether jobs can be stored in their order, and no users' code makes their keys."""
        return not callable(self._key) and self._shared[-1] is None

    def new(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> store.NewJob:
        """Bind, check and encode the arguments; raises `TypeError` and `PayloadError`."""
        payloads.bind_arguments(self._func, args, kwargs, takes_context=self._takes_context)
        texts = payloads.encode_arguments(args, kwargs, names=self._names, limit=self.limit)
        key = self._key
        if callable(key):
            make, name = key, self.group[0]

            def key_text() -> str | None:
                text = concurrency_key_text("concurrency_key", make(*args, **kwargs))
                return None if text is None else str.__str__(text)

            key = aside.ask(f"the concurrency_key of {name}", tuple(texts), key_text)
        return store.NewJob._make((*self._shared, *texts, key, None))


def new_job(call: Call, args: Sequence[Any], kwargs: Mapping[str, Any]) -> store.NewJob:
    """Bind, check and encode a call; raises `TypeError` and `PayloadError`."""
    template: Template | None = vars(call).get("_template")
    if (
        template is None
        or template.options is not call.job_type.options
        or template.limit != conf.max_payload
    ):
        # Kept with the call: most are used again and again.
        template = vars(call)["_template"] = Template(call)
    return template.new(args, kwargs)


def _stored_options(overrides: Mapping[str, Any], options: Options) -> dict[str, Any]:
    stored: dict[str, Any] = {}
    if "timeout" in overrides:
        timeout = overrides["timeout"]
        stored["timeout"] = None if timeout is None else timeout.total_seconds()
    if "backoff" in overrides:
        stored["backoff"] = overrides["backoff"].to_json()
    if options.start_within is not None:
        stored["start_within"] = options.start_within.total_seconds()
    return stored


def enqueue(call: Call, args: Sequence[Any], kwargs: dict[str, Any]) -> Job:
    """Store one job; see `Call.enqueue`."""
    new = new_job(call, args, kwargs)
    db = store.connection()
    while True:
        outcome = store.enqueue(db, new)
        if outcome.created:
            job = as_job(db, new, outcome)
            announce(db, [job])
            return job
        existing: Job | None = Job.all_objects.filter(pk=outcome.id).first()
        if existing is not None:
            return _existing(db, new, outcome, existing)
        # Deleted this very moment, so that the key is free.


def _existing(
    db: BaseDatabaseWrapper, new: store.NewJob, outcome: store.Enqueued, existing: Job
) -> Job:
    if outcome.refused:
        raise DuplicateJob(job=existing)
    existing.created = False
    if new.on_duplicate is OnDuplicate.REPLACE:
        notifications.after_commit(db, notifications.READY, [existing.queue_name])
    return existing


def announce(db: BaseDatabaseWrapper, jobs: Sequence[Job]) -> None:
    """Tell workers and receivers of new jobs, once they are committed."""
    notifications.after_commit(db, notifications.READY, {job.queue_name for job in jobs})
    if signals.job_enqueued.has_listeners(Job):
        tell = _telling.get()
        notifications.call_after_commit(db, lambda: tell(jobs))


@contextmanager
def telling(tell: Callable[[Sequence[Job]], None]) -> Iterator[None]:
    """Let another one send `job_enqueued` meanwhile: receivers may take their time."""
    token = _telling.set(tell)
    try:
        yield
    finally:
        _telling.reset(token)


def tell_enqueued(jobs: Sequence[Job]) -> None:
    """Let whoever sends `job_enqueued` at present send it, for jobs that are committed."""
    _telling.get()(jobs)


def send_enqueued(jobs: Sequence[Job]) -> None:
    """Send `job_enqueued` for jobs that are committed."""
    for job in jobs:
        signals.send(signals.job_enqueued, job=job)


_telling: ContextVar[Callable[[Sequence[Job]], None]] = ContextVar("telling", default=send_enqueued)


def as_job(db: BaseDatabaseWrapper, new: store.NewJob, outcome: store.Enqueued, **more: Any) -> Job:
    """Build the model instance of a job just stored, without reading it back."""
    assert outcome.enqueued_at is not None  # noqa: S101
    assert outcome.run_after is not None  # noqa: S101
    job = Job.__new__(Job)
    vars(job).update(
        _blank(),
        _state=ModelState(),
        id=outcome.id,
        root_id=outcome.id,
        name=new.name,
        queue_name=new.queue_name,
        requires=new.requires,
        priority=new.priority,
        status=JobStatus.READY,
        args=payloads.decode(new.args),
        kwargs=payloads.decode(new.kwargs),
        metadata=dict(new.metadata),
        progress={},
        options=dict(new.options),
        max_attempts=new.max_attempts,
        enqueued_at=outcome.enqueued_at,
        run_after=outcome.run_after,
        due_at=outcome.run_after,
        idempotency_key=new.idempotency_key,
        concurrency_key=new.concurrency_key,
        created=True,
        **more,
    )
    job._state.adding = False
    job._state.db = db.alias
    return job


@cache
def _blank() -> dict[str, Any]:
    """Return the attributes of a new instance: to have each one set anew takes twice the time."""
    return {name: value for name, value in vars(Job()).items() if name != "_state"}


class EnqueuedJobs(Sequence[Job]):
    """List the jobs of one `enqueue_many`; each is built when it is looked at, and then kept."""

    def __init__(self, db: BaseDatabaseWrapper, entries: list[Entry]) -> None:
        self._db = db
        self._entries = entries
        self._built: dict[int, Job] = {}

    def __len__(self) -> int:
        return len(self._entries)

    @overload
    def __getitem__(self, index: int) -> Job: ...
    @overload
    def __getitem__(self, index: slice) -> list[Job]: ...
    def __getitem__(self, index: int | slice) -> Job | list[Job]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        place = range(len(self))[index]
        if place not in self._built:
            self._built[place] = self._build(*self._entries[place])
        return self._built[place]

    def __iter__(self) -> Iterator[Job]:
        return (self[place] for place in range(len(self)))

    def __repr__(self) -> str:
        return f"<{len(self)} enqueued jobs>"

    def _build(self, new: store.NewJob, outcome: store.Enqueued) -> Job:
        if outcome.created and outcome.run_after is not None:
            return as_job(self._db, new, outcome)
        job: Job = Job.all_objects.using(self._db.alias).get(pk=outcome.id)
        job.created = outcome.created
        return job


def enqueue_many(call: Call, calls: Iterable[Sequence[Any]]) -> EnqueuedJobs:
    """Store many jobs; see `Call.enqueue_many`."""
    # Users' code makes them, which may use the database itself.
    parts = [one_call(call, entry) for entry in calls]
    template = Template(call)
    db = store.connection()
    with store.atomic(db):
        if template.is_streamable and all(own is call for own, _args, _kwargs in parts):
            entries = _stream(db, template, parts)
        else:
            entries = _store_sorted(db, call, template, parts)
    jobs = EnqueuedJobs(db, entries)
    notifications.after_commit(db, notifications.READY, {new.queue_name for new, _ in entries})
    if entries and signals.job_enqueued.has_listeners(Job):
        made = [place for place, (_new, outcome) in enumerate(entries) if outcome.created]
        notifications.call_after_commit(db, lambda: send_enqueued([jobs[place] for place in made]))
    return jobs


def _stream(db: BaseDatabaseWrapper, template: Template, parts: Sequence[Part]) -> list[Entry]:
    """Encode one batch while the server stores the one before."""
    news: list[store.NewJob] = []
    stored = []
    with store.pipeline(db):
        for start in range(0, len(parts), BATCH):
            batch = [
                template.new(args, kwargs) for _own, args, kwargs in parts[start : start + BATCH]
            ]
            stored.append(store.send_many(db, batch))
            news += batch
        outcomes = [outcome for enqueued in stored for outcome in enqueued()]
    return list(zip(news, outcomes, strict=True))


def _store_sorted(
    db: BaseDatabaseWrapper, call: Call, template: Template, parts: Sequence[Part]
) -> list[Entry]:
    """Store jobs of which some have keys or options of their own."""
    news: list[store.NewJob] = []
    groups: list[tuple[Any, ...]] = []
    for own, args, kwargs in parts:
        # Entries without options share the work of all that does not depend on arguments.
        made_from = template if own is call else Template(own)
        news.append(made_from.new(args, kwargs))
        groups.append(made_from.group)
    outcomes = _store_many(db, news, groups)
    for outcome in outcomes:
        if outcome.refused:
            raise DuplicateJob(job=Job.all_objects.get(pk=outcome.id))
    return list(zip(news, outcomes, strict=True))


def _store_many(
    db: BaseDatabaseWrapper, news: Sequence[store.NewJob], groups: Sequence[tuple[Any, ...]]
) -> list[store.Enqueued]:
    """Insert in the order of the keys, the lock order of two callers with the same ones."""
    places: Sequence[int] = range(len(news))
    if any(new.idempotency_key is not None for new in news):
        places = sorted(places, key=lambda place: news[place].idempotency_key or "")
    outcomes: dict[int, store.Enqueued] = {}
    for _shared, group in groupby(places, key=lambda place: groups[place]):
        members = list(group)
        for start in range(0, len(members), BATCH):
            batch = members[start : start + BATCH]
            stored = store.enqueue_many(db, [news[place] for place in batch])
            outcomes.update(zip(batch, stored, strict=True))
    return [outcomes[place] for place in range(len(news))]


def one_call(call: Call, entry: Sequence[Any]) -> Part:
    """Read one entry of `enqueue_many`; raises `TypeError` for what is none."""
    if type(entry) is tuple and len(entry) == 2:
        args, kwargs = entry
        if type(args) is tuple and type(kwargs) is dict:
            return call, args, kwargs
    if not _is_list(entry) or not 1 <= len(entry) <= 3:
        raise _no_call(entry)
    args, kwargs, options = (*entry, {}, {})[:3]
    if not (_is_list(args) and isinstance(kwargs, Mapping) and isinstance(options, Mapping)):
        raise _no_call(entry)
    return call.using(**options) if options else call, args, kwargs


def _is_list(value: object) -> bool:
    # A text is a sequence, too, and never meant as one.
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _no_call(entry: object) -> TypeError:
    return TypeError(
        f"a call must be (args, kwargs) or (args, kwargs, options of using), not {entry!r:.100}"
    )
