"""What was missed while no worker ran is caught up with: the newest night, or each of them."""

from datetime import timedelta

from django.db.models import F

from django_durable import JobContext, job, schedule
from django_durable.models import Schedule
from examples.demo import say, wait_until, worker


# Yesterday's figures are of use today; those of the days before that are not.
@schedule(cron="30 2 * * *", timezone="Europe/Berlin", catch_up="one")
@job(takes_context=True)
def nightly_report(context: JobContext) -> None:
    say(f"report of the night of {context.job.scheduled_for:%d %B}")


# Each day has to be booked, however late.
@schedule(cron="45 2 * * *", timezone="Europe/Berlin", catch_up="all")
@job(takes_context=True)
def close_day(context: JobContext) -> None:
    say(f"booking the day of {context.job.scheduled_for:%d %B}")


def main() -> None:
    declared = Schedule.objects.filter(
        job_name__in=[nightly_report.name, close_day.name], declared=True
    )
    # The nights of an earlier run of this example have their jobs already, and get no others.
    declared.delete()
    # A worker writes down what the code declares. Nothing runs before the next night.
    with worker():
        wait_until(lambda: declared.count() == 2)
    # As if the workers had been away for three nights.
    declared.update(next_run_at=F("next_run_at") - timedelta(days=3))
    started = {row.pk: row.jobs.count() for row in declared}

    def made(row: Schedule) -> int:
        return int(row.jobs.filter(status="SUCCESSFUL").count() - started[row.pk])

    with worker():
        report, books = declared.get(name__endswith="report"), declared.get(name__endswith="day")
        wait_until(lambda: made(report) == 1 and made(books) == 3)
    say(f"after three nights: {made(report)} report, {made(books)} days booked")
