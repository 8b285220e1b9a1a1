"""Job types with limits, which count in the database how many of them run at once."""

import threading
from datetime import timedelta

from django.db import connection

from django_durable import Backoff, JobContext, RejectJob, job, workflow
from tests.workerapp.notes import Notes

AT_ONCE = Backoff(initial=timedelta(0), jitter=0.0)
# Which database sessions are inside, for as long as they live: a killed one leaves.
INSIDE = 7_301_000


def overlap(key: str, seconds: float) -> int:
    """Stay inside for so long; return how many were inside just after this one had come in."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT hashtext(%s)", [key])
        (number,) = cursor.fetchone()
        cursor.execute("SELECT pg_advisory_lock_shared(%s, %s)", [INSIDE, number])
        try:
            cursor.execute(
                "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"
                " AND classid = %s AND objid = (%s::bigint & 4294967295)::oid AND granted",
                [INSIDE, number],
            )
            (inside,) = cursor.fetchone()
            threading.Event().wait(seconds)
        finally:
            cursor.execute("SELECT pg_advisory_unlock_shared(%s, %s)", [INSIDE, number])
    return int(inside)


@job(concurrency_key=lambda key, seconds: key)
def alone(key: str, seconds: float) -> int:
    """Run alone under a key."""
    return overlap(key, seconds)


@job(concurrency_key=lambda key, seconds: key)
def alone_too(key: str, seconds: float) -> int:
    """Share the key with `alone`."""
    return overlap(key, seconds)


@job(concurrency_key=lambda key, seconds: key, concurrency_limit=3)
def three(key: str, seconds: float) -> int:
    """Run at most three times at once under a key."""
    return overlap(key, seconds)


@job
def free(key: str, seconds: float) -> int:
    """Run as the queue allows."""
    return overlap(key, seconds)


@job(rate_limit="20/s")
def twenty_a_second() -> None:
    """Start at most so often."""


@job(rate_limit="5/s", concurrency_key=lambda tenant: tenant, concurrency_limit=None)
def five_a_second(tenant: str) -> None:
    """Start at most so often for each tenant."""


@job(rate_limit="5/s", concurrency_key=lambda tenant: tenant, concurrency_limit=None)
def five_a_second_too(tenant: str) -> None:
    """Share the tenant's rate with `five_a_second`."""


@job(rate_limit="3/d")
def three_a_day() -> None:
    """Start at most so often."""


@job(rate_limit="2/s", backoff=AT_ONCE, max_attempts=4)
def fail_twice_a_second() -> None:
    """Fail, to be tried again."""
    raise ValueError


@job(start_within=timedelta(seconds=1))
def soon_or_never() -> None:
    """Be cancelled unless there is a slot soon."""


@workflow(concurrency_key="kept", hold_key_while_parked=True)
def keep_key(context: JobContext, folder: str, label: str) -> None:
    """Keep the key while asleep."""
    notes = Notes(folder)
    notes.add("start", label=label)
    context.wait_for_signal("go")
    notes.add("end", label=label)


@job(takes_context=True, backoff=AT_ONCE, max_attempts=3)
def fail_fail_reject_fail(context: JobContext, folder: str) -> None:
    """Fail twice, reject once, fail once."""
    notes = Notes(folder)
    runs = len(notes.read("run"))
    notes.add("run", attempt=context.attempt)
    if runs == 2:
        raise RejectJob(delay=timedelta(0))
    raise ValueError


@job(accept=lambda job: False)
def nobody_accepts() -> None:
    """Be offered in vain."""
