"""Workflows that do what their argument says, note each call, and must keep a few laws."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

from django.contrib.auth.models import Group
from django.db import connection, transaction

from django_durable import Backoff, JobContext, PermanentFailure, SignalTimeout, step, workflow
from django_durable.current import current
from django_durable.models import Job, Step

AT_ONCE = Backoff(initial=timedelta(0), jitter=0.0)
HOUR = timedelta(hours=1)
Op = tuple[Any, ...]
Key = tuple[UUID, str, str]


class FlakyError(Exception):
    """Pass by itself."""


class Notes:
    """Note what was called and answered, across all runs; made anew for each example."""

    def __init__(self) -> None:
        self.numbers = itertools.count()
        # What each call of a step's function drew; and what the function was answered at a verb.
        self.called: dict[Key, list[int]] = defaultdict(list)
        self.answers: dict[tuple[UUID, str], list[Any]] = defaultdict(list)
        # What was drawn by runs whose claim was taken before they could record it.
        self.refused: set[int] = set()
        # Called in the middle of the next plain step, once.
        self.meanwhile: Callable[[], bool] | None = None

    def draw(self, job: UUID, kind: str, name: str) -> int:
        number = next(self.numbers)
        self.called[job, kind, name].append(number)
        return number

    def do_meanwhile(self, number: int) -> None:
        """Do what was planned, which tells whether the claim still stands after it."""
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None and not meanwhile():
            self.refused.add(number)


notes = Notes()


def reset() -> None:
    """Forget all."""
    notes.__init__()  # type: ignore[misc]


def job_id() -> UUID:
    context: Any = current.get()
    return UUID(str(context.claim.id))


def plain(name: str) -> int:
    number = notes.draw(job_id(), "step", name)
    notes.do_meanwhile(number)
    return number


def take_back(value: int, name: str) -> int:
    return notes.draw(job_id(), "compensation", name)


@step(compensate=take_back)
def buy(name: str) -> int:
    return plain(name)


def write(name: str) -> int:
    number = notes.draw(job_id(), "step", name)
    # Its name is unique, so that no second write can go unseen.
    Group.objects.create(name=f"{job_id()} {name}")
    return number


def fail_after() -> None:
    raise FlakyError


@step(max_attempts=3, backoff=AT_ONCE)
def write_and_fail_after(name: str) -> int:
    transaction.on_commit(fail_after)
    return write(name)


@workflow(name="story", max_attempts=2, backoff=AT_ONCE, timeout=None)
def story(context: JobContext, *ops: Op) -> list[Any]:
    """Do what the operations say, in their order; return what the verbs answered."""
    return [note(context, str(place), op) for place, op in enumerate(ops)]


def note(context: JobContext, place: str, op: Op) -> Any:
    answer = do(context, f"{op[0]} {place}", op)
    notes.answers[context.claim.id, f"{op[0]} {place}"].append(answer)
    return answer


def do(context: JobContext, name: str, op: Op) -> Any:
    kind, *how = op
    if kind in ("step", "buy"):
        return context.step(name, plain if kind == "step" else buy, name)
    if kind == "atomic":
        return context.atomic_step(name, write, name)
    if kind == "atomic hooked":
        return context.atomic_step(name, write_and_fail_after, name)
    if kind == "sleep":
        return context.sleep(name, timedelta(seconds=how[0]))
    if kind == "wait":
        try:
            return context.wait_for_signal(name, timeout=how[0], signal="word")
        except SignalTimeout:
            return "timeout"
    if kind == "children":
        calls = [((child,), {}) for child in how]
        ended = context.gather(context.start_many(name, story, calls), return_exceptions=True)
        return [type(end).__name__ if isinstance(end, Exception) else end for end in ended]
    if kind == "fail" and context.attempt == 1:
        raise FlakyError
    if kind == "die":
        raise PermanentFailure
    return None


def assert_given(before: list[Step], fork: Job) -> None:
    """Look at what a fork was given: all that was earned before its step, as it was recorded.

    From here on, the laws see to it that it is never called again.
    """
    earned = [row for row in before if row.status == "succeeded" and not row.compensated]
    assert [_record(row) for row in fork.steps.order_by("ordinal", "pk")] == [
        _record(row) for row in earned
    ]


def _record(row: Step) -> tuple[Any, ...]:
    return row.kind, row.name, row.ordinal, row.status, row.value, row.child_id


class Laws:
    """Hold what was once true of the checkpoints and must stay true."""

    def __init__(self) -> None:
        self.final: dict[Key, tuple[str, Any, Any]] = {}
        self.calls: dict[Key, int] = {}
        self.ended: dict[UUID, tuple[str, Any]] = {}

    def check(self) -> None:
        """Look at all tables."""
        rows = list(Step.objects.exclude(status="pending"))
        self._recorded_steps_are_never_called_again(rows)
        self._what_was_answered_is_what_is_recorded(rows)
        self._ended_jobs_stay_as_they_are()
        self._atomic_steps_are_all_or_nothing()
        self._each_child_belongs_to_a_checkpoint()
        self._every_living_job_goes_on_some_day()

    def _recorded_steps_are_never_called_again(self, rows: list[Step]) -> None:
        for row in rows:
            key = (row.job_id, row.kind, row.name)
            made = (row.status, row.value, row.child_id)
            calls = notes.called[key]
            assert row.kind != "step" or row.value not in notes.refused, "a loser has recorded it"
            assert self.final.setdefault(key, made) == made, "a record was changed"
            assert self.calls.setdefault(key, len(calls)) == len(calls), "it was called again"
            if calls and row.status == "succeeded":
                assert calls[-1] == row.value, "what was recorded is not what was called last"

    def _what_was_answered_is_what_is_recorded(self, rows: list[Step]) -> None:
        recorded = {(row.job_id, row.name): row for row in rows if row.kind in ("step", "signal")}
        for key, answers in notes.answers.items():
            assert all(answer == answers[0] for answer in answers), "two answers for one verb"
            row = recorded.get(key)
            if row is not None:
                expected = row.value if row.status == "succeeded" else "timeout"
                assert answers[0] == expected, "an answer is not what is recorded"

    def _ended_jobs_stay_as_they_are(self) -> None:
        for job in Job.all_objects.filter(finished_at__isnull=False):
            end = (job.status, job.return_value)
            assert self.ended.setdefault(job.pk, end) == end

    def _atomic_steps_are_all_or_nothing(self) -> None:
        written = set(Group.objects.values_list("name", flat=True))
        recorded = {
            f"{job} {name}"
            for job, name in Step.objects.filter(
                name__startswith="atomic", kind="step", status="succeeded"
            ).values_list("job_id", "name")
            if notes.called[job, "step", name]
        }
        assert written == recorded

    def _each_child_belongs_to_a_checkpoint(self) -> None:
        children = Job.all_objects.filter(parent__isnull=False).exclude(metadata__has_key="undo")
        born = set(children.values_list("pk", flat=True))
        assert born <= set(Step.objects.filter(kind="child").values_list("child_id", flat=True))

    def _every_living_job_goes_on_some_day(self) -> None:
        with connection.cursor() as cursor:
            cursor.execute("""
                SELECT j.id, j.status FROM durable_job AS j WHERE finished_at IS NULL AND NOT CASE
                    WHEN j.status = 'RUNNING' THEN j.lease_until IS NOT NULL
                    WHEN j.status = 'READY' THEN j.due_at IS NOT NULL
                    ELSE j.due_at IS NOT NULL
                        OR (j.waits_for IS NOT NULL AND NOT EXISTS (SELECT FROM durable_signal AS s
                            WHERE s.job_id = j.id AND s.name = j.waits_for))
                        OR EXISTS (SELECT FROM durable_await AS a
                            JOIN durable_job AS w ON w.id = a.awaited_id
                            WHERE a.waiter_id = j.id AND w.finished_at IS NULL)
                END""")
            assert cursor.fetchall() == []
