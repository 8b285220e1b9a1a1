"""The verbs have twins for async code; several steps may run at once."""

import asyncio
from datetime import timedelta

from django_durable import JobContext, workflow
from examples.demo import say, worker


async def fetch(city: str) -> int:
    await asyncio.sleep(0.2)
    return len(city)


@workflow
async def compare(context: JobContext, cities: list[str]) -> str:
    found = await asyncio.gather(*(context.astep(city, fetch, city) for city in cities))
    await context.asleep("a while", timedelta(seconds=1.5))
    # A plain function is called in a thread.
    await context.astep("tell", say, f"fetched {len(found)} at once")
    return f"longest: {max(cities, key=len)}"


def main() -> None:
    job = compare.enqueue(["Oslo", "Reykjavik", "Rome"])
    with worker():
        say(job.result(timeout=60))
