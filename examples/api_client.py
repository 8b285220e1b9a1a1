"""An API allows each tenant so many calls a second, whichever job and worker makes them."""

from datetime import datetime, timedelta

from django_durable import job
from django_durable.models import Job
from examples.demo import say, worker


def by_tenant(tenant: str, number: int) -> str:
    return f"api-of-{tenant}"


# Without a limit of its own the key only says whose rate it is, for both job types.
PER_TENANT = {"concurrency_key": by_tenant, "concurrency_limit": None, "rate_limit": "4/s"}


@job(**PER_TENANT)
def fetch(tenant: str, number: int) -> None:
    """Call the API."""


@job(**PER_TENANT)
def push(tenant: str, number: int) -> None:
    """Call it from another job type."""


def busiest_second(jobs: list[Job]) -> int:
    starts: list[datetime] = sorted(Job.objects.get(pk=each.pk).started_at for each in jobs)
    second = timedelta(seconds=1)
    return max(sum(begin <= at < begin + second for at in starts) for begin in starts)


def main() -> None:
    busy = [(fetch if n % 2 else push).enqueue("acme", n) for n in range(12)]
    quiet = [fetch.enqueue("bolt", n) for n in range(2)]
    with worker(), worker():
        for each in quiet:
            each.result(timeout=60)
        left = Job.objects.ready().filter(pk__in=[each.pk for each in busy]).count()
        say(f"bolt is served while {'calls of acme wait' if left else 'nobody waits'}")
        for each in busy:
            each.result(timeout=60)
    for tenant, jobs in (("acme", busy), ("bolt", quiet)):
        say(f"{tenant}: {len(jobs)} calls, {busiest_second(jobs)} in its busiest second")
