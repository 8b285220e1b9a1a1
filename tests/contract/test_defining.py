"""Contract, section 2: how a function becomes a job type."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from django.test import override_settings

from django_durable import Backoff, JobContext, OnDuplicate, Priority, job, workflow
from django_durable.exceptions import UnknownJob
from django_durable.jobtypes import registry
from django_durable.models import Job
from tests.contract.running import Runner, run

pytestmark = pytest.mark.django_db


def test_a_decorated_function_is_enqueued_and_run() -> None:
    @job
    def add(left: int, right: int) -> int:
        return left + right

    done = run(add.enqueue(1, right=2))

    assert (done.status, done.result()) == (Job.Status.SUCCESSFUL, 3)


def test_a_workflow_is_a_job_type_that_takes_the_context() -> None:
    @workflow
    def flow(context: JobContext, value: str) -> list[Any]:
        return [isinstance(context, JobContext), str(context.job.pk), value]

    @job(takes_context=True)
    def plain(context: JobContext, value: str) -> list[Any]:
        return flow.func(context, value)

    for kind in (flow, plain):
        done = run(kind.enqueue("given"))
        assert done.result() == [True, str(done.pk), "given"]
    assert type(flow) is type(plain)
    assert flow.options == plain.options


def test_a_workflow_has_the_options_of_a_job() -> None:
    @workflow(name="flows.slow", queue_name="slow", max_attempts=7)
    def flow(context: JobContext) -> None: ...

    stored = flow.enqueue()
    assert (stored.name, stored.queue_name, stored.max_attempts) == ("flows.slow", "slow", 7)


def test_async_functions_run_too() -> None:
    @job
    async def double(value: int) -> int:
        await asyncio.sleep(0)
        return 2 * value

    @workflow
    async def flow(context: JobContext) -> int:
        await context.acheck_cancelled()
        return context.attempt

    assert run(double.enqueue(21)).result() == 42
    assert run(flow.enqueue()).result() == 1


def test_the_function_stays_callable_as_func() -> None:
    @job
    def double(value: int) -> int:
        """Double it."""
        return 2 * value

    assert double.func(21) == 42
    assert (double.__name__, double.__doc__) == ("double", "Double it.")
    assert double.__module__ == __name__


def test_calling_the_job_type_says_what_to_do_instead() -> None:
    @job
    def double(value: int) -> int:
        return 2 * value

    with pytest.raises(TypeError, match=r"enqueue it with \.enqueue\(\.\.\.\).*\.func\(\.\.\.\)"):
        double(21)


def test_name_is_module_and_qualname_unless_given() -> None:
    @job
    def one() -> None: ...

    @job(name="shop.two")
    def two() -> None: ...

    assert one.name == f"{__name__}.{one.func.__qualname__}"
    assert two.name == "shop.two"
    assert two.enqueue().name == "shop.two"


def test_aliases_keep_old_rows_running_after_a_rename() -> None:
    @job(name="shop.old")
    def old() -> str:
        return "old code"

    waiting = old.using(idempotency_key="k").enqueue()
    registry.remove(old)

    @job(name="shop.new", aliases=["shop.old", "shop.older"])
    def new() -> str:
        return "new code"

    assert run(waiting).result() == "new code"
    assert registry.get("shop.older") is new
    assert Job.objects.by_key(new, "k").get() == waiting


def test_a_name_belongs_to_one_function() -> None:
    @job(name="shop.mine")
    def mine() -> None: ...

    with pytest.raises(ValueError, match=r"'shop\.mine' is taken by .*mine"):

        @job(name="shop.mine")
        def yours() -> None: ...

    with pytest.raises(ValueError, match=r"'shop\.mine' is taken"):

        @job(name="shop.yours", aliases=["shop.mine"])
        def theirs() -> None: ...

    with pytest.raises(UnknownJob, match=r"shop\.yours"):
        registry.get("shop.yours")


FINE: list[tuple[str, Any]] = [
    ("queue_name", "mail"),
    ("queue_name", "q" * 100),
    ("priority", -100),
    ("priority", 100),
    ("priority", Priority.CRITICAL),
    ("max_attempts", 1),
    ("max_attempts", None),
    ("backoff", Backoff(initial=timedelta(0))),
    ("timeout", timedelta(microseconds=1)),
    ("timeout", None),
    ("requires", "gpu"),
    ("requires", None),
    ("concurrency_key", "the printer"),
    ("concurrency_key", None),
]
ONLY_TYPES_FINE: list[tuple[str, Any]] = [
    ("name", "n" * 255),
    ("aliases", []),
    ("aliases", ("a", "b")),
    ("retry_on", OSError),
    ("retry_on", [OSError, KeyError]),
    ("retry_on", ()),
    ("give_up_on", (KeyError,)),
    ("isolation", "thread"),
    ("isolation", "process"),
    ("takes_context", True),
    ("accept", lambda job: True),
    ("concurrency_key", lambda *args: "key"),
    ("concurrency_limit", 5),
    ("concurrency_limit", None),
    ("hold_key_while_parked", True),
    ("rate_limit", "100/m"),
    ("rate_limit", "1/d"),
    ("rate_limit", None),
    ("start_within", timedelta(milliseconds=1)),
    ("start_within", None),
    ("keep_completed", timedelta(0)),
    ("keep_completed", None),
    ("keep_dead", timedelta(days=1)),
    ("keep_dead", None),
    ("on_dead_letter", print),
]
WRONG: list[tuple[str, Any]] = [
    ("queue_name", ""),
    ("queue_name", None),
    ("queue_name", 3),
    ("queue_name", "q" * 101),
    ("queue_name", "a\x00b"),
    ("queue_name", "\udce9"),
    ("priority", 101),
    ("priority", -101),
    ("priority", 1.5),
    ("priority", True),
    ("priority", "high"),
    ("max_attempts", 0),
    ("max_attempts", -1),
    ("max_attempts", 2**31),
    ("max_attempts", True),
    ("max_attempts", 2.0),
    ("backoff", timedelta(seconds=2)),
    ("backoff", None),
    ("timeout", timedelta(0)),
    ("timeout", timedelta(seconds=-1)),
    ("timeout", 300),
    ("timeout", timedelta.max),
    ("requires", ""),
    ("requires", 3),
    ("concurrency_key", ""),
    ("concurrency_key", 3),
    ("concurrency_key", "a\x00b"),
    ("concurrency_key", "\udce9"),
]
ONLY_TYPES_WRONG: list[tuple[str, Any]] = [
    ("name", "n" * 256),
    ("name", ""),
    ("name", 3),
    ("aliases", "shop.old"),
    ("aliases", [""]),
    ("aliases", [None]),
    ("retry_on", "OSError"),
    ("retry_on", [OSError()]),
    ("retry_on", None),
    ("give_up_on", 3),
    ("isolation", "fibre"),
    ("isolation", None),
    ("takes_context", 1),
    ("accept", "yes"),
    ("concurrency_limit", 0),
    ("concurrency_limit", 1.5),
    ("hold_key_while_parked", None),
    ("rate_limit", "0/s"),
    ("rate_limit", "100"),
    ("rate_limit", "100/y"),
    ("rate_limit", "-1/s"),
    ("rate_limit", 100),
    ("rate_limit", f"{2**31}/s"),
    ("start_within", timedelta(0)),
    ("start_within", 60),
    ("start_within", timedelta.max),
    ("keep_completed", timedelta(seconds=-1)),
    ("keep_completed", 7),
    ("keep_completed", timedelta.max),
    ("keep_dead", timedelta(0)),
    ("keep_dead", timedelta.max),
    ("on_dead_letter", "hook"),
]


def named(cases: list[tuple[str, Any]]) -> Any:
    # Without addresses: processes that share the suite must agree on the names.
    ids = [
        f"{name}={getattr(value, '__name__', repr(value)):.30} {place}"
        for place, (name, value) in enumerate(cases)
    ]
    return pytest.mark.parametrize(("name", "value"), cases, ids=ids)


@named(FINE + ONLY_TYPES_FINE)
def test_option_in_range_is_taken_when_decorated(name: str, value: Any) -> None:
    @job(**{name: value})
    def decorated(*args: Any) -> None: ...


@named(WRONG + ONLY_TYPES_WRONG)
def test_option_out_of_range_is_a_value_error_when_decorated(name: str, value: Any) -> None:
    known = registry.names()

    with pytest.raises(ValueError, match=name):

        @job(**{name: value})
        def decorated(*args: Any) -> None: ...

    assert registry.names() == known


@named(FINE)
def test_option_in_range_is_taken_by_using(name: str, value: Any) -> None:
    @job
    def plain() -> None: ...

    stored = plain.using(**{name: value}).enqueue()
    stored.refresh_from_db()
    if name not in ("backoff", "timeout"):
        assert getattr(stored, name) == value


@named(WRONG)
def test_option_out_of_range_is_a_value_error_when_using_is_called(name: str, value: Any) -> None:
    @job
    def plain() -> None: ...

    with pytest.raises(ValueError, match=name):
        plain.using(**{name: value})


@pytest.mark.parametrize("name", ["retries", "max_atempts", "schedule"])
def test_unknown_option_is_a_type_error(name: str) -> None:
    with pytest.raises(TypeError, match=f"unknown option {name}"):

        @job(**{name: 3})
        def decorated() -> None: ...


def test_what_is_no_function_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="'mail'"):
        job("mail")  # type: ignore[call-overload]


def test_defaults_are_those_of_the_contract() -> None:
    @job
    def plain() -> None: ...

    options = plain.options
    assert options.queue_name == "default"
    assert options.priority == 0
    assert options.max_attempts == 3
    assert options.backoff == Backoff(
        initial=timedelta(seconds=2), factor=2.0, maximum=timedelta(hours=1), jitter=0.1
    )
    assert (options.retry_on, options.give_up_on) == ((Exception,), ())
    assert options.timeout == timedelta(minutes=5)
    assert (options.isolation, options.takes_context) == ("thread", False)
    assert options.requires is options.accept is options.on_dead_letter is None
    assert (options.concurrency_key, options.concurrency_limit) == (None, 1)
    assert options.rate_limit is options.start_within is None
    assert options.hold_key_while_parked is False


def test_priorities_have_names() -> None:
    assert {each.name: each.value for each in Priority} == {
        "LOW": -10,
        "NORMAL": 0,
        "HIGH": 10,
        "CRITICAL": 20,
    }


def test_ways_to_treat_duplicates_have_names() -> None:
    assert [each.name for each in OnDuplicate] == [
        "RETURN_EXISTING",
        "RETURN_LIVE",
        "ALLOW_REUSE",
        "ALLOW_REUSE_ON_FAILURE",
        "NO_REUSE",
        "REPLACE",
    ]


def test_setting_gives_defaults_to_every_job_type_and_the_decorator_wins() -> None:
    @job
    def plain() -> None: ...

    @job(max_attempts=2)
    def own() -> None: ...

    with override_settings(DURABLE_DEFAULTS={"max_attempts": 9, "queue_name": "slow"}):
        assert [plain.enqueue().max_attempts, plain.enqueue().queue_name] == [9, "slow"]
        assert [own.enqueue().max_attempts, own.enqueue().queue_name] == [2, "slow"]
        assert plain.using(max_attempts=4).enqueue().max_attempts == 4
    assert [plain.enqueue().max_attempts, plain.enqueue().queue_name] == [3, "default"]


def test_a_module_that_is_loaded_again_replaces_its_own_job_types() -> None:
    def load() -> Any:
        @job(name="shop.reloaded")
        def reloaded() -> None: ...

        return reloaded

    first, second = load(), load()
    assert first is not second
    assert registry.get("shop.reloaded") is second


def test_one_registry_serves_jobs_and_workflows() -> None:
    @job(name="one.job")
    def one() -> None: ...

    @workflow(name="one.flow")
    def flow(context: JobContext) -> None: ...

    one.enqueue()
    flow.enqueue()
    assert {ran.name for ran in Runner(one, flow).run()} == {"one.job", "one.flow"}
