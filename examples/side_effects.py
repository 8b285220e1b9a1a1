"""What an atomic step writes and that it was done are one commit: it happens exactly once."""

from decimal import Decimal

from django.utils import timezone

from django_durable import Backoff, JobContext, workflow
from examples.demo import say, worker


@workflow(backoff=Backoff(initial=Backoff().initial / 20))
def book(context: JobContext, reference: str) -> str:
    number = context.atomic_step("write", write_order, reference)
    # What is elsewhere can't be rolled back, and may be told twice: it gets a key to know it by.
    context.step("tell", tell_warehouse, number, key=context.delivery_key)
    if context.attempt == 1:
        say("failing after the steps")
        raise ConnectionError("something else went wrong")
    return f"done in {context.attempt} attempts"


def tell_warehouse(number: int, *, key: str) -> None:
    say("telling the warehouse")


def write_order(reference: str) -> int:
    from testproject.shop.models import Order

    say("writing the order")
    order = Order.objects.create(
        reference=reference, customer="Ada", date=timezone.now().date(), amount=Decimal("9.90")
    )
    return order.pk


def main() -> None:
    from uuid import uuid4

    job = book.enqueue(f"example-{uuid4()}")
    with worker():
        say(job.result(timeout=60))
