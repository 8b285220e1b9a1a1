"""The recorder keeps every end that it is given until that is in the database, whatever fails."""

from __future__ import annotations

import errno
import logging
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.db import DatabaseError, DataError, OperationalError, connection

from django_durable import RejectJob, execution, job, signals, store
from django_durable.choices import StepKind, StepStatus
from django_durable.context import JobContext
from django_durable.errortext import ErrorText
from django_durable.jobtypes import registry
from django_durable.models import DeadLetter, Job
from django_durable.operations import current_keep
from django_durable.outcomes import Rejected
from django_durable.store import Checkpoint, Failure, Success
from django_durable.worker import recorder
from django_durable.worker.announcer import Announcer
from django_durable.worker.claimtable import ClaimTable
from django_durable.worker.loops import OUTAGE
from django_durable.worker.options import WorkerOptions
from django_durable.worker.recorder import Recorder
from django_durable.worker.runs import Run, Runs
from tests.contract.running import Runner

pytestmark = pytest.mark.django_db(transaction=True)


class Desk:
    """Be a recorder with runs of three claimed jobs, and no thread."""

    def __init__(self) -> None:
        @job(name="recorder.work", max_attempts=2)
        def work() -> None: ...

        self.jobs = [work.enqueue() for _ in range(3)]
        self.runs = Runs(ClaimTable.create(3), 3)
        claims = Runner(work).claim()
        self.runs.add(
            [Run(JobContext(claim, registry.get(claim.name), None), None) for claim in claims]
        )
        self.announcer = Announcer(WorkerOptions("desk", maintenance=False), self.runs)
        self.recorder = Recorder(self.runs, self.announcer, lambda: None)

    def run_of(self, place: int) -> Run:
        """Return the run of one of the jobs."""
        (run,) = self.runs.of(self.jobs[place].pk)
        return run

    def put(self) -> None:
        """Give the recorder a success, an error to be tried again, and a success."""
        for place in (0, 2):
            run = self.run_of(place)
            self.recorder.put(run, Success(run.right, "null", timedelta(days=1)))
        run = self.run_of(1)
        self.recorder.put(
            run, Failure(run.right, ErrorText.of("OSError", "no"), delay=timedelta(hours=1))
        )

    def step(self) -> float | None:
        """Do one step of the loop."""
        return self.recorder.loop._step()

    def ends(self) -> list[tuple[str, int]]:
        """Return status and attempts recorded of each job."""
        ids = [each.pk for each in self.jobs]
        return [
            (found.status, found.attempts.count())
            for found in Job.objects.filter(pk__in=ids).order_by("pk")
        ]


ALL = [("SUCCESSFUL", 0), ("READY", 1), ("SUCCESSFUL", 0)]


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.fixture
def fail(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let a verb raise an error the first time that it is called, before the write or after it."""

    def fail_once(verb: str, error: Exception, *, after: bool = False) -> None:
        real = getattr(store, verb)
        left = [error]

        def failing(*args: Any, **kwargs: Any) -> Any:
            if left and after:
                real(*args, **kwargs)
            if left:
                raise left.pop()
            return real(*args, **kwargs)

        monkeypatch.setattr(store, verb, failing)

    return fail_once


Told = list[tuple[Any, ...]]


@pytest.fixture
def told(desk: Desk) -> Iterator[Callable[[], Told]]:
    """Collect what is sent of the ends of jobs: of which, what, and what else matters."""
    sent: Told = []
    names = {
        signals.job_succeeded: "succeeded",
        signals.job_failed: "failed",
        signals.job_dead_lettered: "dead",
        signals.job_cancelled: "cancelled",
        signals.lease_lost: "lost",
    }

    def receive(signal: Any, job: Job, **named: Any) -> None:
        more: tuple[Any, ...] = ()
        if signal is signals.job_failed:
            more = (named["attempt"], named["error"].message, named["will_retry"])
        place = [each.pk for each in desk.jobs].index(job.pk)
        sent.append((place, names[signal], *more))

    def all_of_them() -> Told:
        desk.announcer.loop._step()
        return sorted(sent)

    for signal in names:
        signal.connect(receive)
    yield all_of_them
    for signal in names:
        signal.disconnect(receive)


@pytest.mark.parametrize("verb", ["record_successes", "record_failure"])
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(
    "error", [OperationalError("gone"), OSError(errno.EMFILE, "Too many open files")]
)
def test_an_outage_puts_off_all_that_is_unwritten(
    desk: Desk, fail: Any, told: Callable[[], Told], verb: str, error: Exception, *, after: bool
) -> None:
    fail(verb, error, after=after)
    desk.put()
    with pytest.raises(OUTAGE):
        desk.step()
    desk.step()

    assert desk.ends() == ALL
    assert not desk.runs.rights()
    assert told() == [(0, "succeeded"), (1, "failed", 1, "no", True), (2, "succeeded")]


def test_a_death_whose_answer_was_lost_is_told_once(
    desk: Desk, fail: Any, told: Callable[[], Told]
) -> None:
    fail("record_failure", OperationalError("gone"), after=True)
    run = desk.run_of(1)
    failure = Failure(run.right, ErrorText.of("OSError", "no"), retryable=False)
    desk.recorder.put(run, failure)
    with pytest.raises(OUTAGE):
        desk.step()
    desk.step()
    assert told() == [(1, "dead"), (1, "failed", 1, "no", False)]


def test_a_failure_whose_answer_was_lost_is_told_though_the_next_attempt_runs(
    desk: Desk, fail: Any, told: Callable[[], Told]
) -> None:
    fail("record_failure", OperationalError("gone"), after=True)
    run = desk.run_of(1)
    desk.recorder.put(run, Failure(run.right, ErrorText.of("OSError", "no")))
    with pytest.raises(OUTAGE):
        desk.step()
    (taken,) = Runner(run.context.job_type).claim()
    assert taken.id == run.right[0]
    desk.step()
    assert told() == [(1, "failed", 1, "no", True)]


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_a_rejection_whose_answer_was_lost_is_no_lost_lease(
    desk: Desk, fail: Any, told: Callable[[], Told], *, is_cancelled: bool
) -> None:
    fail("release", OperationalError("gone"), after=True)
    run = desk.run_of(1)
    desk.recorder.put(run, Rejected(run.right, timedelta(hours=1)))
    if is_cancelled:
        desk.jobs[1].cancel()
    with pytest.raises(OUTAGE):
        desk.step()
    desk.step()
    assert not desk.runs.of(run.right[0])
    assert told() == ([(1, "cancelled")] if is_cancelled else [])


@pytest.mark.parametrize("attempts", [1, 2])
def test_what_a_rescue_has_written_is_no_own_failure(
    desk: Desk, told: Callable[[], Told], attempts: int
) -> None:
    run = desk.run_of(1)
    Job.objects.filter(pk=run.right[0]).update(max_attempts=attempts)
    store.rescue(connection, current_keep(), claimers=[Job.objects.get(pk=run.right[0]).claimer])
    desk.recorder.put(run, Failure(run.right, ErrorText.of("OSError", "no")))
    desk.step()
    assert told() == [(1, "lost")]


def test_a_claim_that_another_has_taken_since_a_return_is_lost(
    desk: Desk, told: Callable[[], Told]
) -> None:
    run = desk.run_of(1)
    store.release(connection, [run.right], keep=current_keep())
    (taken,) = Runner(run.context.job_type).claim()
    error = ErrorText.of("OSError", "no")
    store.record_failure(connection, Failure((taken.id, taken.epoch), error), current_keep())
    desk.recorder.put(run, Failure(run.right, error))
    desk.step()
    assert told() == [(1, "lost")]


@pytest.mark.parametrize("verb", ["record_successes", "record_failure"])
def test_an_error_that_nobody_knows_keeps_only_what_it_struck(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    poisoned = desk.run_of(0 if verb == "record_successes" else 1)
    real = getattr(store, verb)
    broken = [True]

    def refusing(db: Any, ends: Any, *rest: Any) -> Any:
        rights = [end.right for end in (ends if isinstance(ends, list) else [ends])]
        if broken and poisoned.right in rights:
            raise RuntimeError("a bug")
        return real(db, ends, *rest)

    monkeypatch.setattr(store, verb, refusing)
    desk.put()
    pause = desk.step()

    assert pause is not None
    assert 0 < pause <= 1
    assert desk.runs.rights() == [poisoned.right]
    broken.clear()
    desk.recorder._again_at = 0.0
    desk.step()
    assert desk.ends() == ALL
    assert not desk.runs.rights()


def test_an_end_that_can_not_even_be_called_unstorable_stays(desk: Desk, fail: Any) -> None:
    fail("record_successes", DatabaseError("refused"))
    fail("record_failure", DatabaseError("refused as well"))
    run = desk.run_of(0)
    desk.recorder.put(run, Success(run.right, "null", timedelta(days=1)))
    desk.step()
    assert run.right in desk.runs.rights()

    desk.recorder._again_at = 0.0
    desk.step()
    assert run.right not in desk.runs.rights()
    assert desk.ends()[0] == ("SUCCESSFUL", 0)


def test_a_rejection_is_a_line_of_the_log_that_says_why(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "django_durable.jobs")
    run = desk.run_of(0)
    outcome = execution.judge(run.context, RejectJob(timedelta(minutes=5)))
    desk.recorder.put(run, outcome)
    desk.step()
    assert [(record.levelname, record.message) for record in caplog.records] == [
        (
            "INFO",
            f"recorder.work {run.right[0]} was rejected: it raised RejectJob; offered again in 5 m",
        )
    ]
    assert caplog.records[0].job_id == str(run.right[0])


def test_a_rejection_by_the_accept_of_its_type_says_so(desk: Desk) -> None:
    @job(name="recorder.picky", accept=lambda _job: False)
    def picky() -> None: ...

    picky.enqueue()
    (claim,) = Runner(picky).claim()
    outcome = execution.execute(JobContext(claim, picky, None))
    assert isinstance(outcome, Rejected)
    assert outcome.why == "its accept said no"


def test_a_rejection_that_the_database_refuses_is_a_death_that_says_so(desk: Desk) -> None:
    run = desk.run_of(0)
    desk.recorder.put(run, Rejected(run.right, timedelta.max))
    desk.step()
    assert not desk.runs.of(run.right[0])
    assert desk.ends()[0] == ("DEAD", 1)
    assert desk.jobs[0].attempts.get().message.startswith("the outcome can't be stored")


@pytest.fixture
def narrow() -> Iterator[None]:
    """A server that takes no values beyond 100 characters: its own limit is 256 MiB and more."""
    with connection.cursor() as cursor:
        cursor.execute(
            """
            CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
            BEGIN
                RAISE EXCEPTION 'too large' USING ERRCODE = 'program_limit_exceeded';
            END $$;
            CREATE TRIGGER refuse BEFORE UPDATE ON durable_job FOR EACH ROW
            WHEN (length(new.return_value) > 100) EXECUTE FUNCTION refuse();
            CREATE TRIGGER refuse BEFORE INSERT ON durable_step FOR EACH ROW
            WHEN (length(new.value) > 100) EXECUTE FUNCTION refuse();
            """
        )
    yield
    with connection.cursor() as cursor:
        cursor.execute("DROP FUNCTION refuse CASCADE")


@pytest.mark.usefixtures("narrow")
def test_a_result_beyond_a_limit_of_the_server_is_a_death_that_says_so(desk: Desk) -> None:
    for place, size in enumerate((10, 101, 10)):
        run = desk.run_of(place)
        desk.recorder.put(run, Success(run.right, "1" * size, timedelta(days=1)))
    desk.step()

    assert desk.ends() == [("SUCCESSFUL", 0), ("DEAD", 1), ("SUCCESSFUL", 0)]
    letter = DeadLetter.objects.get()
    assert (letter.reason, letter.error_class) == ("unstorable", "DataError")
    assert "too large" in letter.message


@pytest.mark.usefixtures("narrow")
def test_a_checkpoint_beyond_a_limit_of_the_server_fails_its_run_alone(desk: Desk) -> None:
    tickets = []
    for place, size in enumerate((10, 101)):
        right = desk.run_of(place).right
        made = Checkpoint(right, StepKind.STEP, "a", 1, StepStatus.SUCCEEDED, "1" * size)
        tickets.append(recorder.Ticket([made]))
    desk.recorder._tickets.extend(tickets)
    desk.step()

    assert tickets[0].wait().stands
    with pytest.raises(DataError, match="too large"):
        tickets[1].wait()


def sizes_of(monkeypatch: pytest.MonkeyPatch, verb: str) -> list[int]:
    """Note how much each call of a verb writes."""
    sizes: list[int] = []
    real = getattr(store, verb)

    def counted(db: Any, items: Any) -> Any:
        sizes.append(len(items))
        return real(db, items)

    monkeypatch.setattr(store, verb, counted)
    return sizes


def test_large_results_are_not_written_all_at_once(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "LARGEST", 1000)
    sizes = sizes_of(monkeypatch, "record_successes")
    for place, size in enumerate((2000, 500, 500)):
        run = desk.run_of(place)
        desk.recorder.put(run, Success(run.right, "1" * size, timedelta(days=1)))
    while desk.runs.rights():
        desk.step()
    assert sizes == [1, 2]


def test_large_checkpoints_are_not_written_all_at_once(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "LARGEST", 1000)
    sizes = sizes_of(monkeypatch, "record_for_many")
    for place, size in enumerate((500, 500, 2000)):
        right = desk.run_of(place).right
        checkpoint = Checkpoint(right, StepKind.STEP, "a", 1, StepStatus.SUCCEEDED, "1" * size)
        desk.recorder._tickets.append(recorder.Ticket([checkpoint]))
    while desk.recorder._tickets:
        desk.step()
    assert sizes == [2, 1]


def test_ends_wait_a_moment_beside_steps_and_never_longer(desk: Desk) -> None:
    """A commit for each end, between those of the steps, would be most of the commits."""
    desk.put()
    run = desk.run_of(1)
    step = Checkpoint(run.right, StepKind.STEP, "charge", 0, StepStatus.SUCCEEDED, value="1")
    ticket = recorder.Ticket([step])
    desk.recorder._tickets.append(ticket)

    left = desk.step()

    assert ticket.answered
    assert left is not None
    assert 0 < left < 1.01 * recorder.ENDS_WAIT
    assert {status for status, _attempts in desk.ends()} == {"RUNNING"}
    desk.recorder._ends_due_at = 0.0
    desk.recorder._tickets.append(recorder.Ticket([replace(step, name="ship")]))
    desk.step()
    assert desk.ends() == ALL
    # With no step beside them they wait for nothing.
    assert desk.recorder._ends_due_at == math.inf
