"""Each tenant has a schedule of its own, made, changed and turned off while the workers run."""

from datetime import timedelta
from uuid import uuid4

from django_durable import job
from django_durable.models import Schedule
from examples.demo import say, wait_until, worker


@job
def count_usage(tenant: str) -> str:
    return f"usage of {tenant}"


def sign_up(tenant: str, every: timedelta) -> Schedule:
    # By name: a second call changes the schedule that is there.
    return count_usage.schedule(f"usage-{tenant}", every=every, kwargs={"tenant": tenant})


def main() -> None:
    run = uuid4()
    acme, bolt = f"acme-{run}", f"bolt-{run}"
    rows = [sign_up(acme, timedelta(seconds=1)), sign_up(bolt, timedelta(hours=1))]
    with worker():
        # An interval begins at once.
        wait_until(lambda: rows[0].jobs.count() >= 3 and rows[1].jobs.count() == 1)
        say("acme is counted each second, bolt once an hour")

        sign_up(bolt, timedelta(seconds=1))
        wait_until(lambda: rows[1].jobs.count() >= 3)
        say("bolt has a better contract, and is counted each second")

        rows[0].disable()
        last = rows[0].jobs.count()
        seen = rows[1].jobs.count()
        wait_until(lambda: rows[1].jobs.count() >= seen + 2)
        say(f"acme is turned off: {rows[0].jobs.count() - last} runs since")
    for row in rows:
        row.delete()
