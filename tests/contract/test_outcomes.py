"""Contract, section 5: what an attempt can end in, row by row.

What needs the processes of a worker (a timeout, its stop, its death) is in tests/processes; here
are the records that it makes of them.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from django.db import connection

import django_durable
from django_durable import (
    Backoff,
    CancelJob,
    CancelRequested,
    DurableError,
    JobCancelled,
    JobContext,
    JobFailed,
    PayloadError,
    PermanentFailure,
    RejectJob,
    RetryJob,
    StopRun,
    job,
    store,
    workflow,
)
from django_durable.execution import timed_out
from django_durable.models import Attempt, DeadLetter, Job
from django_durable.operations import current_keep
from tests.by_hand import beat
from tests.contract.running import Runner, run, run_to_the_end

SECOND = timedelta(seconds=1)
HOUR = timedelta(hours=1)

pytestmark = pytest.mark.django_db


class FlakyError(Exception):
    """Pass by itself."""


class TellingError(Exception):
    """Say itself whether it may pass."""

    def __init__(self, retryable: Any) -> None:
        super().__init__(retryable)
        self.retryable = retryable


def fresh(made: Job) -> Job:
    return Job.objects.get(pk=made.pk)


def raising(error: BaseException, **options: Any) -> Any:
    """Return a job type that raises this."""

    @job(name=f"outcomes.{type(error).__name__}", **options)
    def fail() -> None:
        raise error

    return fail


def assert_dead(ended: Job, reason: str, attempts: int = 1) -> None:
    assert ended.status == Job.Status.DEAD
    assert ended.attempt == attempts
    assert ended.attempts.count() == attempts
    assert ended.dead_letter.reason == reason
    assert ended.dead_letter.attempt_count == attempts


def assert_tried_again(ended: Job) -> None:
    assert (ended.status, ended.attempt) == (Job.Status.READY, 1)
    assert ended.attempts.get().outcome == "failed"
    assert ended.dead_letter is None


# Returns a value


@pytest.mark.parametrize("value", ["text", None])
def test_returned_value_is_the_result_and_none_is_a_value(value: Any) -> None:
    @job
    def give() -> Any:
        return value

    done = run(give.enqueue())

    assert (done.status, done.result()) == (Job.Status.SUCCESSFUL, value)


# RetryJob, retry_on


def test_retry_job_is_tried_again_after_the_backoff() -> None:
    fail = raising(RetryJob("later"), backoff=Backoff(initial=HOUR, jitter=0), retry_on=())
    tried = run(fail.enqueue())

    assert_tried_again(tried)
    assert tried.run_after - tried.attempts.get().finished_at == HOUR
    assert tried.attempts.get().message == "later"


@pytest.mark.parametrize("delay", [timedelta(0), 5 * SECOND])
def test_retry_job_may_bring_its_own_delay(delay: timedelta) -> None:
    tried = run(raising(RetryJob("later", delay=delay)).enqueue())

    assert_tried_again(tried)
    assert tried.run_after - tried.attempts.get().finished_at == delay


def test_retry_job_after_max_attempts_is_dead() -> None:
    fail = raising(RetryJob("later", delay=timedelta(0)), max_attempts=2)

    assert_dead(run_to_the_end(fail.enqueue()), "exhausted", attempts=2)


def test_exception_in_retry_on_is_tried_again_and_dead_after_max_attempts() -> None:
    fail = raising(FlakyError("x"), max_attempts=2, retry_on=(FlakyError,))
    made = fail.enqueue()

    assert_tried_again(run(made))
    made.run_now()
    ended = run(made)
    assert_dead(ended, "exhausted", attempts=2)
    letter = ended.dead_letter
    assert letter.error_class == f"{__name__}.FlakyError"
    assert letter.message == "x"
    assert "raise error" in letter.traceback
    assert letter.died_at == ended.finished_at


def test_wait_before_a_retry_begins_at_the_end_of_the_attempt(
    advance: Callable[[timedelta], None],
) -> None:
    fail = raising(FlakyError(), backoff=Backoff(initial=SECOND, jitter=0))
    made = fail.enqueue()
    runner = Runner(fail)
    outcome = runner.execute(runner.take())
    advance(10 * SECOND)
    runner.record(outcome)

    assert runner.claim() == []
    advance(SECOND)
    assert [claim.id for claim in runner.claim()] == [made.pk]


# PermanentFailure, give_up_on, the errors of the package


@pytest.mark.parametrize(
    "error",
    [
        PermanentFailure("hopeless"),
        JobFailed("of another job"),
        JobCancelled("of another job"),
        PayloadError("no payload"),
        DurableError("any other"),
        *(
            getattr(django_durable, name)()
            for name in (
                "SignalTimeout",
                "DuplicateStep",
                "DuplicateJob",
                "DepthExceeded",
                "UnknownJob",
                "JobTimeout",
                "LeaseLost",
                "AlreadyReplayed",
            )
        ),
    ],
    ids=lambda error: type(error).__name__,
)
def test_permanent_failures_and_errors_of_the_package_are_dead_at_once(error: Exception) -> None:
    assert_dead(run(raising(error, retry_on=Exception).enqueue()), "permanent")


def test_failure_of_an_awaited_job_that_is_let_through_is_permanent() -> None:
    first = run(raising(PermanentFailure("the cause")).enqueue())

    @job
    def wait() -> Any:
        return Job.objects.get(pk=first.pk).result()

    ended = run(wait.enqueue())

    assert_dead(ended, "permanent")
    assert ended.dead_letter.error_class == "JobFailed"
    assert "the cause" in ended.dead_letter.message


def test_package_and_permanent_errors_are_dead_whatever_they_say_themselves() -> None:
    error = PermanentFailure()
    error.retryable = True  # type: ignore[attr-defined]

    assert_dead(run(raising(error).enqueue()), "permanent")


# CancelJob


def test_cancel_job_is_cancelled_with_that_reason_and_no_dead_letter() -> None:
    ended = run(raising(CancelJob("no longer wanted")).enqueue())

    assert (ended.status, ended.cancel_reason) == (Job.Status.CANCELLED, "no longer wanted")
    assert not DeadLetter.objects.exists()
    assert ended.attempts.get().outcome == "cancelled"


# retryable


@pytest.mark.parametrize(
    ("retryable", "options"),
    [
        (True, {"retry_on": ()}),
        (True, {"give_up_on": TellingError}),
        (True, {"retry_on": (), "give_up_on": TellingError}),
    ],
)
def test_exception_that_says_it_is_retryable_is_tried_again(
    retryable: bool, options: dict[str, Any]
) -> None:
    assert_tried_again(run(raising(TellingError(retryable), **options).enqueue()))


def test_exception_that_says_it_is_not_retryable_is_permanent() -> None:
    fail = raising(TellingError(False), retry_on=TellingError)

    assert_dead(run(fail.enqueue()), "permanent")


@pytest.mark.parametrize("retryable", [None, 0, 1, "no", lambda: False])
def test_only_a_boolean_says_so(retryable: Any) -> None:
    assert_tried_again(run(raising(TellingError(retryable)).enqueue()))
    dead = run(raising(TellingError(retryable), give_up_on=TellingError).enqueue())
    assert_dead(dead, "permanent")


# Groups of exceptions

OTHER = ValueError("another")


@pytest.mark.parametrize("error", [PermanentFailure("hopeless"), JobFailed("of another job")])
def test_group_with_a_permanent_error_is_permanent(error: Exception) -> None:
    group = ExceptionGroup("two", [OTHER, ExceptionGroup("one", [error])])

    ended = run(raising(group).enqueue())

    assert_dead(ended, "permanent")
    assert ended.dead_letter.error_class == "ExceptionGroup"
    assert str(error) in ended.dead_letter.traceback


def test_group_is_tried_again_if_all_its_errors_would_be() -> None:
    assert_tried_again(run(raising(ExceptionGroup("one", [OTHER]), retry_on=ValueError).enqueue()))
    fail = raising(ExceptionGroup("two", [OTHER, KeyError()]), retry_on=ValueError)
    assert_dead(run(fail.enqueue()), "permanent")


def test_option_that_names_groups_means_the_group() -> None:
    group = ExceptionGroup("one", [OTHER])
    assert_tried_again(run(raising(group, retry_on=ExceptionGroup).enqueue()))
    assert_dead(run(raising(group, give_up_on=ExceptionGroup).enqueue()), "permanent")


class TransientGroup(ExceptionGroup):
    """Pass by itself, whatever it is made of."""

    retryable = True


def test_group_that_says_itself_whether_it_passes_is_believed() -> None:
    hopeless = PermanentFailure("hopeless")
    assert_tried_again(run(raising(TransientGroup("one", [hopeless]), retry_on=KeyError).enqueue()))
    nested = ExceptionGroup("two", [TransientGroup("one", [hopeless]), OTHER])
    assert_tried_again(run(raising(nested).enqueue()))
    group = ExceptionGroup("one", [OTHER])
    group.retryable = False  # type: ignore[attr-defined]
    assert_dead(run(raising(group).enqueue()), "permanent")
    assert_dead(run(raising(group, retry_on=ExceptionGroup).enqueue()), "permanent")


def test_group_says_what_a_retry_a_rejection_or_a_cancel_in_it_says() -> None:
    later = timedelta(hours=1)
    tried_again = run(raising(ExceptionGroup("", [OTHER, RetryJob("", delay=later)])).enqueue())
    assert tried_again.run_after > tried_again.enqueued_at + later
    rejected = run(raising(ExceptionGroup("", [RejectJob()])).enqueue())
    assert (rejected.attempt, rejected.rejections) == (0, 1)
    failed = run(raising(ExceptionGroup("", [RejectJob(), OTHER])).enqueue())
    assert (failed.attempt, failed.rejections) == (1, 0)
    cancelled = run(raising(ExceptionGroup("", [OTHER, CancelJob("enough")])).enqueue())
    assert (cancelled.status, cancelled.cancel_reason) == (Job.Status.CANCELLED, "enough")


def test_group_in_which_the_run_was_stopped_is_its_stop() -> None:
    @job(takes_context=True)
    def stop(context: JobContext) -> None:
        Job.objects.get(pk=context.job.pk).cancel("stop it")
        context.stop(CancelRequested())
        try:
            context.check_cancelled()
        except StopRun as error:
            group = BaseExceptionGroup("two", [OTHER, error])
            group.retryable = True  # type: ignore[attr-defined]
            raise group from None

    ended = run(stop.enqueue())

    assert (ended.status, ended.cancel_reason) == (Job.Status.CANCELLED, "stop it")


# RejectJob, accept


def test_rejected_job_is_ready_again_and_no_attempt_is_counted() -> None:
    rejected = run(raising(RejectJob()).enqueue())

    assert rejected.status == Job.Status.READY
    assert (rejected.attempt, rejected.rejections) == (0, 1)
    assert rejected.started_at is None
    assert not rejected.attempts.exists()
    assert rejected.run_after > rejected.enqueued_at + SECOND / 2


def test_delay_of_a_rejected_job_is_short_and_grows() -> None:
    reject = raising(RejectJob())
    made = reject.enqueue()
    delays = []
    for _ in range(10):
        runner = Runner(reject)
        claim = runner.take()
        outcome: Any = runner.execute(claim)
        runner.record(outcome)
        delays.append(outcome.delay)
        made.run_now()

    assert delays[0] <= 5 * SECOND
    assert all(before <= after for before, after in pairwise(delays))
    assert delays[-1] > 10 * delays[0]
    assert fresh(made).rejections == 10


@pytest.mark.parametrize("delay", [HOUR, timedelta(0)])
def test_rejected_job_may_bring_its_own_delay(delay: timedelta) -> None:
    reject = raising(RejectJob(delay=delay))
    made = reject.enqueue()
    runner = Runner(reject)
    outcome: Any = runner.execute(runner.take())

    assert outcome.delay == delay
    runner.record(outcome)
    assert fresh(made).blocked_on.startswith("rejected once") is bool(delay)


def test_earlier_attempts_of_a_rejected_job_stay_counted() -> None:
    @workflow
    def fail_then_reject(context: JobContext) -> None:
        if context.attempt == 1:
            raise FlakyError
        raise RejectJob

    made = run(fail_then_reject.enqueue())
    made.run_now()
    rejected = run(made)

    assert (rejected.status, rejected.attempt, rejected.rejections) == ("READY", 1, 1)
    assert [each.number for each in rejected.attempts.all()] == [1]


def test_rejections_use_no_attempts_up() -> None:
    rejections = 5

    @workflow(max_attempts=1)
    def fussy(context: JobContext) -> str:
        if context.job.rejections < rejections:
            raise RejectJob
        return "done"

    done = run_to_the_end(fussy.enqueue())

    assert (done.status, done.attempt, done.rejections) == ("SUCCESSFUL", 1, rejections)


def test_claim_leaves_a_job_alone_that_its_worker_shuns() -> None:
    @job
    def work() -> None: ...

    shunned, other = work.enqueue(), work.enqueue()
    runner = Runner(work)
    runner.claims.look(connection)

    claimed = runner.claims.claim(connection, 10, shunned=[shunned.pk])
    assert [claim.id for claim in claimed] == [other.pk]
    assert [claim.id for claim in Runner(work).claim()] == [shunned.pk]


# Timeout


def test_timed_out_attempt_is_recorded_and_tried_again_whatever_retry_on_says() -> None:
    @job(retry_on=(), give_up_on=Exception, timeout=SECOND, max_attempts=2)
    def slow() -> str:
        return "late"

    made = slow.enqueue()
    runner = Runner(slow)
    claim = runner.take()
    runner.record(timed_out(JobContext(claim, slow, SECOND)))

    tried = fresh(made)
    attempt = tried.attempts.get()
    assert (tried.status, tried.attempt) == (Job.Status.READY, 1)
    assert (attempt.outcome, attempt.error_class) == ("timed_out", "JobTimeout")
    assert attempt.message == "overran its timeout of 1 s"
    assert tried.run_after > attempt.finished_at

    # A late return value is discarded.
    assert not runner.record(runner.execute(claim))
    assert fresh(made).status == Job.Status.READY

    made.run_now()
    claim = runner.take()
    runner.record(timed_out(JobContext(claim, slow, SECOND)))
    assert_dead(fresh(made), "exhausted", attempts=2)


# The worker stops, or dies


def test_job_that_is_given_back_is_ready_at_once_and_no_attempt_is_counted() -> None:
    @job
    def work() -> str:
        return "done"

    made = work.enqueue()
    runner = Runner(work)
    runner.give_back(runner.take())

    back = fresh(made)
    assert (back.status, back.attempt) == (Job.Status.READY, 0)
    assert (back.run_after, back.started_at) == (made.run_after, None)
    assert not back.attempts.exists()
    assert run(made).attempt == 1


def test_retry_that_is_given_back_has_the_attempts_that_it_had() -> None:
    fail = raising(FlakyError())
    made = run(fail.enqueue())
    made.run_now()
    runner = Runner(fail)
    claim = runner.take()
    assert claim.attempt == 2
    runner.give_back(claim)

    assert fresh(made).attempt == 1
    assert [each.number for each in made.attempts.all()] == [1]


def test_lost_attempt_is_recorded_and_the_job_keeps_its_old_place(
    advance: Callable[[timedelta], None],
) -> None:
    @job
    def work() -> None: ...

    lost = work.enqueue()
    Runner(work, worker="the one that died").take()
    later = work.enqueue()
    advance(31 * SECOND)
    store.rescue(connection, current_keep())

    found = fresh(lost)
    attempt = found.attempts.get()
    assert (found.status, found.attempt) == (Job.Status.READY, 1)
    assert found.run_after == lost.run_after
    assert (attempt.outcome, attempt.error_class) == ("lost", "LeaseLost")
    assert attempt.worker == "the one that died"
    assert "the one that died" in attempt.message
    assert [claim.id for claim in Runner(work).claim()] == [lost.pk, later.pk]


@pytest.mark.parametrize("most", [1, 2, 3])
def test_job_whose_last_attempt_is_lost_is_dead(
    advance: Callable[[timedelta], None], most: int
) -> None:
    @job(max_attempts=most)
    def work() -> None: ...

    made = work.enqueue()
    for _ in range(most):
        Runner(work).take()
        advance(31 * SECOND)
        store.rescue(connection, current_keep())

    dead = fresh(made)
    assert_dead(dead, "lost", attempts=most)
    with pytest.raises(JobFailed) as caught:
        dead.result()
    assert caught.value.error_class == "LeaseLost"


def test_lease_that_stands_is_nobodys_to_rescue(advance: Callable[[timedelta], None]) -> None:
    @job
    def work() -> None: ...

    made = work.enqueue()
    Runner(work, lease=30 * SECOND).take()
    advance(29 * SECOND)

    assert store.rescue(connection, current_keep()).failed == ()
    assert fresh(made).status == Job.Status.RUNNING


# The worker does not know the name


def test_job_of_an_unknown_type_is_not_claimed_and_says_so() -> None:
    @job(name="outcomes.known")
    def known() -> None: ...

    @job(name="outcomes.unknown")
    def unknown() -> str:
        return "done"

    made = unknown.enqueue()
    beat("outcomes.known")

    assert Runner(known).claim() == []
    untouched = fresh(made)
    assert (untouched.status, untouched.attempt) == (Job.Status.READY, 0)
    assert untouched.blocked_on == (
        "no live worker serves it: nobody knows the job type 'outcomes.unknown'"
    )
    assert run(made).result() == "done"


# The payload, the result


@pytest.mark.parametrize("text", ['{"$":["enum","no_such_module:Size","SMALL"]}', "not JSON", "["])
def test_payload_that_cannot_be_decoded_is_dead_after_one_attempt(text: str) -> None:
    @job
    def work(value: Any) -> None: ...

    made = work.enqueue(1)
    with connection.cursor() as cursor:
        cursor.execute("UPDATE durable_job SET args = %s", [text])

    dead = run(made)

    assert_dead(dead, "undecodable")
    assert dead.dead_letter.error_class == "PayloadDecodeError"


def test_result_that_cannot_be_stored_is_a_permanent_failure_that_says_so() -> None:
    @job
    def give() -> Any:
        return {"rows": [1, object()]}

    dead = run(give.enqueue())

    assert_dead(dead, "unstorable")
    assert dead.dead_letter.message == (
        "the result.rows[1] is of type builtins.object, which a payload can't keep without loss"
    )


# The fence


def test_nothing_of_a_run_is_stored_whose_job_another_claim_has(
    advance: Callable[[timedelta], None],
) -> None:
    @job(takes_context=True, max_attempts=5)
    def work(context: JobContext) -> str:
        return f"attempt {context.attempt}"

    made = work.enqueue()
    old, new = Runner(work), Runner(work)
    lost = old.take()
    advance(HOUR)
    store.rescue(connection, current_keep())
    current = new.take()

    context = JobContext(lost, work, None)
    with pytest.raises(StopRun):
        context.progress(1)
    with pytest.raises(StopRun):
        context.check_cancelled()
    assert fresh(made).progress == {}
    assert not old.record(old.execute(lost))
    assert new.record(new.execute(current))
    assert fresh(made).result() == "attempt 2"


def test_nothing_of_a_run_is_stored_after_a_rescue_either(
    advance: Callable[[timedelta], None],
) -> None:
    fail = raising(FlakyError())
    made = fail.enqueue()
    runner = Runner(fail)
    claim = runner.take()
    advance(HOUR)
    store.rescue(connection, current_keep())

    assert not runner.record(runner.execute(claim))
    assert fresh(made).attempts.get().outcome == "lost"


def test_lapsed_lease_that_nobody_has_taken_still_counts(
    advance: Callable[[timedelta], None],
) -> None:
    @job
    def work() -> str:
        return "done"

    made = work.enqueue()
    runner = Runner(work)
    claim = runner.take()
    advance(HOUR)

    assert runner.record(runner.execute(claim))
    assert fresh(made).result() == "done"


# What stops a run from inside


def test_stop_is_seen_by_finally_and_by_no_except_exception() -> None:
    seen = []

    @workflow
    def flow(context: JobContext) -> None:
        context.job.cancel()
        try:
            context.check_cancelled()
        except Exception:  # noqa: BLE001 - that it sees nothing is the point
            seen.append("except")
        finally:
            seen.append("finally")

    assert run(flow.enqueue()).status == Job.Status.CANCELLED
    assert seen == ["finally"]


# Errors as texts


@pytest.mark.parametrize(
    ("message", "stored"),
    [
        ("a\x00b", "a\ufffdb"),
        ("\udce9", "\ufffd"),
        ("x" * 1_000_000, None),
        ("<script>", "<script>"),
    ],
    ids=["NUL", "surrogate", "long", "markup"],
)
def test_error_texts_are_always_storable(message: str, stored: str | None) -> None:
    dead = run(raising(PermanentFailure(message)).enqueue())
    letter = dead.dead_letter

    if stored is None:
        assert len(letter.message) < 20_000
        assert "characters left out" in letter.message
    else:
        assert letter.message == stored
    assert letter.traceback
    assert Attempt.objects.get().message == letter.message


def test_error_that_cannot_even_be_printed_is_recorded() -> None:
    class UnprintableError(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no")

    dead = run(raising(UnprintableError(), max_attempts=1).enqueue())

    assert dead.dead_letter.error_class.endswith("UnprintableError")
    assert "RuntimeError" in dead.dead_letter.message
