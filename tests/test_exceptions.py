"""What the exceptions carry and what they say."""

from datetime import timedelta
from typing import Any

import pytest

import django_durable
from django_durable import exceptions
from django_durable.choices import JobStatus
from django_durable.models import DeadLetter, Job

INSTRUCTIONS = (
    exceptions.RetryJob,
    exceptions.PermanentFailure,
    exceptions.RejectJob,
    exceptions.CancelJob,
)
STOPS = (
    exceptions.StopRun,
    exceptions.CancelRequested,
    exceptions.RunTimedOut,
    exceptions.ClaimLost,
)


def test_failed_job_carries_the_error_and_says_it() -> None:
    job, letter = Job(name="shop.pay"), DeadLetter()
    error = exceptions.JobFailed(
        "card refused", error_class="shop.CardError", traceback="...", dead_letter=letter, job=job
    )

    assert str(error) == "shop.CardError: card refused"
    assert (error.message, error.error_class, error.traceback) == (
        "card refused",
        "shop.CardError",
        "...",
    )
    assert (error.job, error.dead_letter) == (job, letter)


def test_cancelled_job_says_why() -> None:
    assert str(exceptions.JobCancelled("too late")) == "the job was cancelled: too late"
    assert str(exceptions.JobCancelled()) == "the job was cancelled"


def test_duplicate_job_names_the_state_of_the_other() -> None:
    job = Job(name="shop.pay", idempotency_key="order-7", status=JobStatus.RUNNING)
    error = exceptions.DuplicateJob(job=job)

    assert error.job is job
    assert str(error) == (
        f"shop.pay has a job with idempotency key 'order-7' already; it is RUNNING ({job.pk})"
    )
    assert str(exceptions.DuplicateJob("taken", job=job)) == "taken"


@pytest.mark.parametrize("kind", [exceptions.RetryJob, exceptions.RejectJob])
def test_delay_is_a_timedelta_that_is_not_negative(kind: Any) -> None:
    assert kind(delay=timedelta(minutes=1)).delay == timedelta(minutes=1)
    assert kind().delay is None
    with pytest.raises(ValueError, match="delay must not be negative"):
        kind(delay=timedelta(seconds=-1))
    with pytest.raises(TypeError, match="delay must be a timedelta or None, not int"):
        kind(delay=60)


def test_instructions_are_no_errors_of_the_package() -> None:
    for kind in INSTRUCTIONS:
        assert issubclass(kind, Exception)
        assert not issubclass(kind, exceptions.DurableError)
    assert str(exceptions.RetryJob("gateway away", timedelta(5))) == "gateway away"
    assert str(exceptions.CancelJob("sold out")) == "sold out"


def test_what_ends_a_run_passes_by_a_handler_of_exceptions() -> None:
    def run(kind: type[BaseException]) -> None:
        try:
            raise kind  # noqa: TRY301
        except Exception:  # noqa: BLE001
            pytest.fail("caught")

    for kind in STOPS:
        with pytest.raises(kind):
            run(kind)


def test_public_exceptions_are_those_of_the_package() -> None:
    internal = {"RunTimedOut", "RunParked", "ClaimLost", "PayloadDecodeError"}
    for name, kind in vars(exceptions).items():
        if isinstance(kind, type) and kind.__module__ == exceptions.__name__:
            assert getattr(django_durable, name, None) is (None if name in internal else kind)
