"""A workflow that sleeps holds no slot, and sleeps only the rest after a restart."""

from datetime import timedelta

from django_durable import JobContext, job, workflow
from examples.demo import say, wait_until, worker


@workflow
def remind(context: JobContext, whom: str) -> str:
    begun = context.now("begun")
    context.sleep("a while", timedelta(seconds=4))
    slept = context.now("woken") - begun
    return f"{whom} was reminded after {slept.total_seconds():.0f} s"


@job
def quick() -> str:
    return "a quick job ran meanwhile, in the only slot"


def main() -> None:
    sleeper = remind.enqueue("Grace")
    with worker("--concurrency", "1") as first:
        wait_until(lambda: type(sleeper).objects.get(pk=sleeper.pk).status == "WAITING")
        say(quick.enqueue().result(timeout=60))
        first.kill()
    with worker("--concurrency", "1"):
        say(sleeper.result(timeout=60))
