"""A job is tried again, then it is a dead letter, and once the cause is mended it is replayed."""

import os
from datetime import timedelta

from django_durable import Backoff, JobContext, JobFailed, workflow
from django_durable.models import DeadLetter
from examples.demo import say, worker

# In life somebody mends a service; here a variable says that it is done.
SERVICE_IS_UP = os.environ.get("EXAMPLES_SERVICE") == "up"


def tell_somebody(letter: DeadLetter) -> None:
    say(f"dead after {letter.attempt_count} attempts: {letter.message}")


@workflow(
    max_attempts=3,
    backoff=Backoff(initial=timedelta(seconds=0.2)),
    on_dead_letter=tell_somebody,
)
def invoice(context: JobContext, order: int) -> str:
    charge = context.step("charge", charge_card, order)
    context.step("send", send, order)
    return f"{charge}, and the invoice is sent"


def charge_card(order: int) -> str:
    say(f"charging order {order}")
    return f"order {order} is charged once"


def send(order: int) -> None:
    if not SERVICE_IS_UP:
        say("the mail service is down")
        raise ConnectionError("the mail service is down")


def main() -> None:
    job = invoice.enqueue(7)
    with worker():
        try:
            job.result(timeout=60)
        except JobFailed as error:
            letter = error.dead_letter
            say(f"reason: {letter.reason}")
    # The replay resumes: what was earned is not done again.
    again = letter.replay()
    with worker(EXAMPLES_SERVICE="up"):
        say(again.result(timeout=60))
