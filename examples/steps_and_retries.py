"""A step with a policy is tried again by itself, and an error for good can be handled."""

from datetime import timedelta

from django_durable import Backoff, JobContext, PermanentFailure, step, workflow
from examples.demo import say, worker

CALLS = {"fetch": 0}


@step(max_attempts=5, backoff=Backoff(initial=timedelta(seconds=0.2)))
def fetch_rate(currency: str) -> float:
    CALLS["fetch"] += 1
    say(f"fetching the rate of {currency}, try {CALLS['fetch']}")
    if CALLS["fetch"] < 3:
        raise ConnectionError("the service is down")
    return 1.25


def reserve(room: str) -> None:
    raise PermanentFailure(f"there is no {room}")


@workflow
def book(context: JobContext) -> str:
    rate = context.step("rate", fetch_rate, "USD")
    try:
        context.step("reserve", reserve, "sea view")
    except PermanentFailure as error:
        # Recorded, too: a replay of this run comes here without asking again.
        return f"rate {rate}, but {error}"
    return f"rate {rate}"


def main() -> None:
    job = book.enqueue()
    with worker():
        say(job.result(timeout=60))
