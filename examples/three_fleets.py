"""Three fleets of workers on one database: each has its queue, and none waits for another."""

import threading
from collections import Counter
from collections.abc import Iterable

from django.conf import settings

from django_durable import job
from django_durable.models import Job, Queue
from examples.demo import say, worker

ORDERS = settings.DURABLE_DEFAULTS["queue_name"]
MAIL, REPORTS = f"{ORDERS}-mail", f"{ORDERS}-reports"


@job(queue_name=MAIL)
def send_letter(number: int) -> None:
    """Be quick."""


@job(queue_name=REPORTS)
def write_report(month: int) -> None:
    threading.Event().wait(0.5)


@job
def ship_order(number: int) -> None:
    """Be in the queue of what names none."""


def by_whom(jobs: Iterable[Job]) -> str:
    workers = Counter(Job.objects.get(pk=each.pk).worker for each in jobs)
    return ", ".join(f"{number} by the {name}" for name, number in workers.items())


def main() -> None:
    reports = [write_report.enqueue(month) for month in range(3)]
    letters = [send_letter.enqueue(number) for number in range(20)]
    orders = [ship_order.enqueue(number) for number in range(5)]
    with (
        worker("-q", MAIL, "--name", "mail fleet", "--concurrency", "10"),
        # One at a time, so that reports never eat up what the others need.
        worker("-q", REPORTS, "--name", "reports fleet", "--concurrency", "1"),
        worker("-q", ORDERS, "--name", "orders fleet"),
    ):
        for each in [*letters, *orders, *reports]:
            each.result(timeout=60)
        say(f"letters: {by_whom(letters)}")
        say(f"orders: {by_whom(orders)}")
        say(f"reports: {by_whom(reports)}")

        # While the mail server is being repaired:
        Queue.objects.pause(MAIL)
        letter = send_letter.enqueue(21)
        ship_order.enqueue(6).result(timeout=60)
        say(f"orders go on, and the letter waits: {letter.blocked_on}")
        Queue.objects.resume(MAIL)
        letter.result(timeout=60)
        say("the letter is sent")
