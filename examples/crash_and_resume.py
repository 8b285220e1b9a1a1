"""A worker is killed in the second of three steps; another one goes on there."""

import threading

from django_durable import JobContext, workflow
from examples.demo import say, wait_until, worker


@workflow
def order(context: JobContext, number: int) -> str:
    context.step("reserve", say, f"reserving the goods of order {number}")
    context.step("charge", charge, number)
    context.step("ship", say, f"shipping order {number}")
    return f"order {number} is done, in attempt {context.attempt}"


def charge(number: int) -> None:
    say(f"charging order {number}")
    threading.Event().wait(2)


def main() -> None:
    job = order.enqueue(7)
    with worker("--lease", "2s") as first:
        wait_until(lambda: job.steps.filter(name="reserve").exists())
        first.kill()
        say("the worker is dead")
    with worker("--lease", "2s"):
        say(job.result(timeout=60))
