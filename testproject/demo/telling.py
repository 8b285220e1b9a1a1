"""What the tables tell in the end: the take-over, the troubles, the books."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from django.conf import settings

from django_durable.models import Attempt, DeadLetter, Job
from testproject.demo import books
from testproject.demo.orders import Plan
from testproject.demo.story import Story, count
from testproject.shop.jobs import charge_payment
from testproject.shop.models import GatewayCharge, Payment

# How many of the refused and of the retried are told of one by one.
SHOWN = 2


def tell_unheard_charges(story: Story, held: Sequence[UUID]) -> None:
    """Tell how many of the jobs that the worker held had charged a card and not heard of it."""
    charges = GatewayCharge.objects.filter(key__in=[str(job) for job in held])
    heard = Payment.objects.filter(charge_id__in=charges.values("pk"))
    unheard = charges.count() - heard.count()
    if unheard:
        story.say(
            f"Meanwhile the gateway has made {count(unheard, 'charge')} for which nobody was left"
            " to hear the answer. Who asks again with the same key gets the same charge."
        )


def tell_take_over(story: Story, held: Sequence[UUID], killed_at: datetime) -> None:
    """Tell when the jobs of the killed worker were free again."""
    lost = Attempt.objects.filter(job__in=held, outcome=Attempt.Outcome.LOST)
    times = sorted(lost.values_list("finished_at", flat=True))
    if times:
        after = (times[-1] - killed_at).total_seconds()
        story.say(
            f"{after:.1f} s after the kill the last of its leases was over:"
            f" {count(len(times), 'attempt')} recorded as lost, and tried again."
        )


def tell_refused(story: Story, plan: Plan) -> None:
    """Tell of the dead letters."""
    letters = DeadLetter.objects.filter(job__idempotency_key__startswith=f"{plan.run}-")
    for letter in letters.order_by("died_at")[:SHOWN]:
        story.say(
            f"Refused for good: {letter.message} ({letter.error_class}). After"
            f" {count(letter.attempt_count, 'attempt')} it is a dead letter, which the admin"
            " shows, and can replay."
        )


def tell_retried(story: Story, plan: Plan) -> None:
    """Tell of the attempts of charges that failed first and went well later."""
    retried = Job.objects.filter(
        name=charge_payment.name,
        idempotency_key__startswith=f"{plan.run}-",
        status=Job.Status.SUCCESSFUL,
        attempts__outcome=Attempt.Outcome.FAILED,
    )
    backoff = charge_payment.options.backoff
    wait = f"{backoff.initial.total_seconds():g} s, then {backoff.factor:g} times as long"
    for job in retried.distinct().order_by("pk")[:SHOWN]:
        story.say(f"Failed for a while, and tried again after {wait} each time:")
        before: datetime | None = None
        for attempt in job.attempts.order_by("number"):
            what = f"{attempt.outcome}: {attempt.message}"
            _tell_attempt(story, attempt.number, attempt.started_at, before, what)
            before = attempt.finished_at
        _tell_attempt(story, job.attempt, job.claimed_at, before, "succeeded")


def _tell_attempt(
    story: Story, number: int, started: datetime | None, before: datetime | None, what: str
) -> None:
    at = f"{started:%H:%M:%S}" if started else ""
    waited = f"{(started - before).total_seconds():.1f} s later" if started and before else ""
    story.fact(f"  attempt {number}", f"{at:<10}{waited:<14}{what}")


def check_books(
    story: Story, plan: Plan, rolled_back: str, more: Sequence[books.Entry] = ()
) -> bool:
    """Write the books, and more entries, as a table; return whether they agree."""
    entries = [*books.balance(plan, rolled_back, settings.LOCAL_DIR / "mail"), *more]
    story.table(("", "should be", "is"), [entry.as_row() for entry in entries])
    wrong = sum(not entry.agrees for entry in entries)
    if wrong:
        story.verdict(f"The books do not agree: {count(wrong, 'figure')} wrong.", good=False)
    else:
        story.verdict("The books agree: everything happened exactly once.", good=True)
    return not wrong
