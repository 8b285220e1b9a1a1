"""What users write with: job types, their options, and the calls that enqueue them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, overload

from asgiref.sync import sync_to_async
from django.db.models import Q

from django_durable.backoff import LONGEST, Backoff
from django_durable.choices import MAX_PRIORITY, MIN_PRIORITY, UNDO, OnDuplicate
from django_durable.conf import conf
from django_durable.durations import parse_rate
from django_durable.exceptions import DurableError, PermanentFailure, UnknownJob

if TYPE_CHECKING:
    from django_durable.enqueueing import EnqueuedJobs
    from django_durable.models import Job, Schedule
    from django_durable.schedules import Declaration

Function = Callable[..., Any]
ISOLATIONS = ("thread", "process")


class Unset:
    """Stand for an option that was not given, where None is a value."""

    def __repr__(self) -> str:
        return "unset"


UNSET = Unset()


@dataclass(frozen=True)
class Options:
    """Hold the options of a job type, as the reference lists them."""

    queue_name: str = "default"
    priority: int = 0
    max_attempts: int | None = 3
    backoff: Backoff = field(default_factory=Backoff)
    retry_on: tuple[type[BaseException], ...] = (Exception,)
    give_up_on: tuple[type[BaseException], ...] = ()
    timeout: timedelta | None = timedelta(minutes=5)
    isolation: str = "thread"
    takes_context: bool = False
    requires: str | None = None
    accept: Callable[[Job], bool] | None = None
    concurrency_key: str | Callable[..., str | None] | None = None
    concurrency_limit: int | None = 1
    hold_key_while_parked: bool = False
    rate_limit: str | None = None
    start_within: timedelta | None = None
    keep_completed: timedelta | Unset | None = UNSET
    keep_dead: timedelta | Unset | None = UNSET
    on_dead_letter: Callable[[Any], None] | None = None

    def mends(self, error: BaseException) -> bool:
        """Tell whether another attempt may mend an error, by the table of outcomes."""
        if isinstance(error, PermanentFailure) or (
            isinstance(error, DurableError) and getattr(error, "retryable", None) is not True
        ):
            return False
        says = getattr(error, "retryable", None)
        if isinstance(says, bool):
            return says
        if isinstance(error, self.give_up_on):
            return False
        return isinstance(error, self.retry_on)


DEFAULTS = Options()
OPTION_NAMES = frozenset(option.name for option in fields(Options))


def check_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options in their stored form.

    Raises `TypeError` for an unknown name and `ValueError` for a value out of range.
    """
    unknown = sorted(set(given) - OPTION_NAMES)
    if unknown:
        raise TypeError(
            f"unknown option {', '.join(unknown)}; known: {', '.join(sorted(OPTION_NAMES))}"
        )
    checked = dict(given)
    for name, value in given.items():
        check = _CHECKS.get(name)
        if check is not None:
            checked[name] = check(name, value)
    return checked


def check_text(name: str, value: Any, longest: int) -> str:
    """Return the text; raises `ValueError` for one that is empty, too long or not storable."""
    if not isinstance(value, str) or not value or len(value) > longest or not is_storable(value):
        raise ValueError(f"{name} must be a text of 1 to {longest} characters, not {value!r:.100}")
    return value


def is_storable(text: str) -> bool:
    """Tell whether PostgreSQL takes the text: no NUL, no lone surrogate."""
    try:
        return b"\x00" not in text.encode()
    except UnicodeEncodeError:
        return False


def _optional_text(name: str, value: Any, longest: int) -> str | None:
    return None if value is None else check_text(name, value, longest)


def _priority(name: str, value: Any) -> int:
    if (
        isinstance(value, bool)
        or not isinstance(value, int)
        or not MIN_PRIORITY <= value <= MAX_PRIORITY
    ):
        raise ValueError(
            f"{name} must be a whole number from {MIN_PRIORITY} to {MAX_PRIORITY}, not {value!r}"
        )
    return int(value)


def _whole(name: str, value: Any) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 2**31:
        raise ValueError(
            f"{name} must be a whole number from 1 on or None (without limit), not {value!r}"
        )
    return int(value)


def _duration(name: str, value: Any, *, zero: bool) -> timedelta | None:
    if value is None:
        return None
    if not isinstance(value, timedelta):
        raise ValueError(f"{name} must be a timedelta or None, not {value!r}")
    if value < timedelta(0) or (not zero and not value):
        raise ValueError(
            f"{name} must be {'zero or ' if zero else ''}longer than nothing, not {value!r}"
        )
    if value > LONGEST:
        raise ValueError(f"{name} must be at most {LONGEST.days} days, not {value!r}")
    return value


def _rate(name: str, value: Any) -> str | None:
    if value is None:
        return None
    try:
        parse_rate(value)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    return str(value)


def _exceptions(name: str, value: Any) -> tuple[type[BaseException], ...]:
    classes = tuple(value) if isinstance(value, Iterable) else (value,)
    if not all(isinstance(kind, type) and issubclass(kind, BaseException) for kind in classes):
        raise ValueError(f"{name} must be exception classes, not {value!r}")
    return classes


def _callable(name: str, value: Any) -> Any:
    if value is not None and not callable(value):
        raise ValueError(f"{name} must be callable or None, not {value!r}")
    return value


def _backoff(name: str, value: Any) -> Backoff:
    if not isinstance(value, Backoff):
        raise ValueError(f"{name} must be a Backoff, not {value!r}")
    return value


def _boolean(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be True or False, not {value!r}")
    return value


def _isolation(name: str, value: Any) -> str:
    if value not in ISOLATIONS:
        raise ValueError(f"{name} must be one of {', '.join(ISOLATIONS)}, not {value!r}")
    return str(value)


def concurrency_key_text(name: str, value: Any) -> str | None:
    """Return a concurrency key in its stored form; `ValueError` if it can't be one."""
    if value is None:
        return None
    if not isinstance(value, str) or not value:
        raise ValueError(f"{name} must be a text that is not empty, or None, not {value!r:.100}")
    if not is_storable(value):
        raise ValueError(f"{name} has characters that PostgreSQL can't store: {value!r:.100}")
    return value


_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "queue_name": lambda name, value: check_text(name, value, 100),
    "priority": _priority,
    "max_attempts": _whole,
    "backoff": _backoff,
    "retry_on": _exceptions,
    "give_up_on": _exceptions,
    "timeout": lambda name, value: _duration(name, value, zero=False),
    "isolation": _isolation,
    "takes_context": _boolean,
    "requires": lambda name, value: _optional_text(name, value, 100),
    "accept": _callable,
    "concurrency_key": lambda name, value: (
        value if callable(value) else concurrency_key_text(name, value)
    ),
    "concurrency_limit": _whole,
    "hold_key_while_parked": _boolean,
    "rate_limit": _rate,
    "start_within": lambda name, value: _duration(name, value, zero=False),
    "keep_completed": lambda name, value: _duration(name, value, zero=True),
    "keep_dead": lambda name, value: _duration(name, value, zero=False),
    "on_dead_letter": _callable,
}


class Registry:
    """Know the job types of this process by name and alias."""

    def __init__(self) -> None:
        self._by_name: dict[str, JobType] = {}

    def add(self, job_type: JobType) -> None:
        """Register a job type; a module that is loaded again replaces its own.

        Raises `ValueError` when another function has the name or an alias already.
        """
        for name in (job_type.name, *job_type.aliases):
            known = self._by_name.get(name)
            if known is not None and known.source != job_type.source:
                raise ValueError(
                    f"the job name {name!r} is taken by {known.source}; give {job_type.source}"
                    " another name= or remove the alias"
                )
        for name in (job_type.name, *job_type.aliases):
            self._by_name[name] = job_type

    def find(self, name: str) -> JobType | None:
        """Return the job type that runs rows of this name, or None."""
        return self._by_name.get(name)

    def get(self, name: str) -> JobType:
        """Return the job type that runs rows of this name; raises `UnknownJob`."""
        found = self._by_name.get(name)
        if found is None:
            raise UnknownJob(f"no job type is called {name!r} in this process")
        return found

    def names(self) -> list[str]:
        """Return all names and aliases, sorted."""
        return sorted(self._by_name)

    def remove(self, job_type: JobType) -> None:
        """Forget a job type, as a test may want to."""
        for name in (job_type.name, *job_type.aliases):
            self._by_name.pop(name, None)


registry = Registry()


def _is_function(value: object) -> bool:
    return callable(value) and hasattr(value, "__qualname__") and not isinstance(value, JobType)


class JobType:
    """Be a decorated function: the thing that is enqueued.

    `func` is the function itself. A crash during `enqueue` leaves the job stored or not, never
    half: it is one INSERT in the caller's transaction.
    """

    def __init__(
        self, func: Function, *, name: str | None, aliases: Sequence[str], given: Mapping[str, Any]
    ) -> None:
        if not _is_function(func):
            raise TypeError(f"a job type is made of a function, not {func!r:.100}")
        if isinstance(aliases, str):
            raise ValueError(f"aliases must be a list of names, not the text {aliases!r:.100}")
        self.func = func
        self.source = f"{func.__module__}.{func.__qualname__}"
        self.name = check_text("name", self.source if name is None else name, 255)
        self.aliases = tuple(check_text("aliases", alias, 255) for alias in aliases)
        self.given = check_options(given)
        self.is_async = inspect.iscoroutinefunction(func)
        self.schedules: list[Declaration] = []
        self.__doc__ = func.__doc__
        self.__name__ = getattr(func, "__name__", self.name)
        self.__module__ = func.__module__
        registry.add(self)

    def __repr__(self) -> str:
        return f"<job type {self.name}>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Refuse to be called by accident where `enqueue` was meant."""
        raise TypeError(
            f"{self.name} is a job type: enqueue it with .enqueue(...), or call the function"
            " itself as .func(...)"
        )

    @property
    def options(self) -> Options:
        """Return the options: those given, then `DURABLE_DEFAULTS`, then the package's."""
        defaults = conf.defaults
        cached = self.__dict__.get("_options")
        if cached is None or cached[0] is not defaults:
            merged = {**check_options(defaults), **self.given}
            cached = (defaults, Options(**merged) if merged else DEFAULTS)
            self.__dict__["_options"] = cached
        options: Options = cached[1]
        return options

    @property
    def takes_context(self) -> bool:
        """Tell whether the first parameter is the `JobContext`.

        Declarations ask, while modules are imported: what is wrong with `DURABLE_DEFAULTS` is left
        to the system check, which says it in a sentence.
        """
        defaults: object = conf.defaults
        given = {**defaults, **self.given} if isinstance(defaults, Mapping) else self.given
        return given.get("takes_context", DEFAULTS.takes_context) is True

    @cached_property
    def _call(self) -> Call:
        return Call(self)

    def using(self, **overrides: Any) -> Call:
        """Return the job type with options for the calls that follow; see `Call.using`."""
        return self._call.using(**overrides)

    def signal(self, key: str, name: str, payload: Any = None) -> bool:
        """Send a signal to the job that holds this idempotency key; see `Job.signal`.

        Where, after a rename, several do, the one that lives gets it, of several the newest.
        Raises `Job.DoesNotExist`, and stores nothing, when there is none.
        """
        from django_durable.models import Job

        holders = Job.objects.by_key(self, key).alias(live=Q(finished_at__isnull=True))
        job: Job = holders.order_by("-live", "-pk")[:1].get()
        return job.signal(name, payload)

    async def asignal(self, key: str, name: str, payload: Any = None) -> bool:
        """Do what `signal` does, from async code."""
        delivered: bool = await sync_to_async(self.signal)(key, name, payload)
        return delivered

    def schedule(self, name: str, **rule: Any) -> Schedule:
        """Make the schedule of this name, or let it say what this call says; return its row.

        Takes what `@schedule` takes; what is not given is the default again. `enabled` turns it
        on or off; without it, what an operator chose stays. Part of the caller's transaction.
        Raises `ValueError` for a wrong rule and `TypeError` for arguments that don't fit.
        """
        from django_durable import schedules

        return schedules.upsert(self, name, **rule)

    async def aschedule(self, name: str, **rule: Any) -> Schedule:
        """Do what `schedule` does, from async code."""
        row: Schedule = await sync_to_async(self.schedule)(name, **rule)
        return row

    def enqueue(self, *args: Any, **kwargs: Any) -> Job:
        """Store a job that calls the function with these arguments; see `Call.enqueue`."""
        return self._call.enqueue(*args, **kwargs)

    async def aenqueue(self, *args: Any, **kwargs: Any) -> Job:
        """Do what `enqueue` does, from async code."""
        return await self._call.aenqueue(*args, **kwargs)

    def enqueue_many(self, calls: Iterable[Sequence[Any]]) -> EnqueuedJobs:
        """Store many jobs; see `Call.enqueue_many`."""
        return self._call.enqueue_many(calls)

    async def aenqueue_many(self, calls: Iterable[Sequence[Any]]) -> EnqueuedJobs:
        """Do what `enqueue_many` does, from async code."""
        return await self._call.aenqueue_many(calls)


CALL_OPTIONS = frozenset(
    [
        "queue_name",
        "priority",
        "run_after",
        "max_attempts",
        "backoff",
        "timeout",
        "idempotency_key",
        "on_duplicate",
        "metadata",
        "concurrency_key",
        "requires",
    ]
)


@dataclass(frozen=True)
class Call:
    """Be a job type with options for the jobs that it enqueues."""

    job_type: JobType
    overrides: Mapping[str, Any] = field(default_factory=dict)

    def using(self, **overrides: Any) -> Call:
        """Return a copy with further options; `metadata` of chained calls merges.

        Takes `queue_name, priority, run_after` (aware datetime or timedelta)`, max_attempts,
        backoff, timeout, idempotency_key, on_duplicate, metadata` (dict of str)`,
        concurrency_key, requires`. None is a value, not "unchanged". Raises `TypeError` for an
        unknown name and `ValueError` for a value out of range.
        """
        unknown = sorted(set(overrides) - CALL_OPTIONS)
        if unknown:
            raise TypeError(
                f"using() got unknown options: {', '.join(unknown)};"
                f" it takes {', '.join(sorted(CALL_OPTIONS))}"
            )
        checked = {name: _CALL_CHECKS[name](name, value) for name, value in overrides.items()}
        if "metadata" in checked:
            checked["metadata"] = {**self.overrides.get("metadata", {}), **checked["metadata"]}
        return Call(self.job_type, {**self.overrides, **checked})

    def enqueue(self, *args: Any, **kwargs: Any) -> Job:
        """Store a job that calls the function with these arguments, and return it.

        It is part of the caller's transaction on `DURABLE_DATABASE`. `job.created` tells whether
        this call made it; with an `idempotency_key` a job may exist, and `on_duplicate` decides.
        Raises `TypeError` for a wrong call, `PayloadError` for an argument that can't be stored
        and `DuplicateJob` where the mode says so; nothing is stored then.
        """
        from django_durable import enqueueing

        return enqueueing.enqueue(self, args, kwargs)

    async def aenqueue(self, *args: Any, **kwargs: Any) -> Job:
        """Do what `enqueue` does, from async code."""
        job: Job = await sync_to_async(self.enqueue)(*args, **kwargs)
        return job

    def enqueue_many(self, calls: Iterable[Sequence[Any]]) -> EnqueuedJobs:
        """Store a job for each `(args, kwargs)` or `(args, kwargs, options of using)`, in order.

        All or nothing, a round trip per few thousand rows. Returns a sequence of the jobs, which
        are built when they are looked at. Raises as `enqueue` does.
        """
        from django_durable import enqueueing

        return enqueueing.enqueue_many(self, calls)

    async def aenqueue_many(self, calls: Iterable[Sequence[Any]]) -> EnqueuedJobs:
        """Do what `enqueue_many` does, from async code."""
        jobs: EnqueuedJobs = await sync_to_async(self.enqueue_many)(list(calls))
        return jobs


def _run_after(name: str, value: Any) -> datetime | timedelta | None:
    if value is None:
        return None
    if isinstance(value, timedelta):
        if not timedelta(0) <= value <= LONGEST:
            raise ValueError(f"{name} must be from 0 to {LONGEST.days} days, not {value!r}")
        return value
    if not isinstance(value, datetime):
        raise ValueError(f"{name} must be an aware datetime or a timedelta, not {value!r}")
    if value.utcoffset() is None:
        raise ValueError(f"{name} must be aware: {value!r} has no time zone")
    try:
        return value.astimezone(UTC)
    except OverflowError:
        raise ValueError(f"{name} must be in the years 1 to 9999 in UTC, not {value!r}") from None


def _metadata(name: str, value: Any) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{name} must be a dict of str, not {value!r:.100}")
    for item in (*value.keys(), *value.values()):
        if not isinstance(item, str):
            raise ValueError(f"{name} must be a dict of str; {item!r:.100} is none")
        if not is_storable(item):
            raise ValueError(f"{name} has a character that can't be stored: {item!r:.100}")
    if UNDO in value:
        raise ValueError(f"{name} can't have the key {UNDO!r}, which makes an undo job")
    return dict(value)


def _on_duplicate(name: str, value: Any) -> OnDuplicate:
    try:
        return OnDuplicate(value)
    except ValueError:
        raise ValueError(f"{name} must be one of OnDuplicate, not {value!r}") from None


_CALL_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    **{
        name: _CHECKS[name]
        for name in ("queue_name", "priority", "max_attempts", "backoff", "timeout", "requires")
    },
    "run_after": _run_after,
    "idempotency_key": lambda name, value: _optional_text(name, value, 500),
    "on_duplicate": _on_duplicate,
    "metadata": _metadata,
    "concurrency_key": concurrency_key_text,
}


@overload
def job(func: Function) -> JobType: ...
@overload
def job(
    *, name: str | None = None, aliases: Sequence[str] = (), **options: Any
) -> Callable[[Function], JobType]: ...
def job(
    func: Function | None = None,
    *,
    name: str | None = None,
    aliases: Sequence[str] = (),
    **options: Any,
) -> JobType | Callable[[Function], JobType]:
    """Make a function a job type, with the options that the reference lists.

    Raises `TypeError` for an unknown option and `ValueError` for a value out of range or a name
    that is taken.
    """

    def decorate(function: Function) -> JobType:
        return JobType(function, name=name, aliases=aliases, given=options)

    return decorate(func) if func is not None else decorate


@overload
def workflow(func: Function) -> JobType: ...
@overload
def workflow(
    *, name: str | None = None, aliases: Sequence[str] = (), **options: Any
) -> Callable[[Function], JobType]: ...
def workflow(
    func: Function | None = None, **options: Any
) -> JobType | Callable[[Function], JobType]:
    """Make a function a job type whose first parameter is the `JobContext`."""
    options = {**options, "takes_context": True}
    return job(func, **options) if func is not None else job(**options)
