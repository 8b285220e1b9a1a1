"""What becomes of an order: three jobs, each of which enqueues the next in its own transaction.

A job runs at least once: a worker that is killed leaves it to another, which begins again. So each
of these may be run twice without harm:

- What is in the database changes in one transaction that does nothing the second time.
- The next job has the order's reference as its idempotency key, so there is one for each order.
- Services elsewhere are handed `context.delivery_key`, which stays the same however often the job
  is tried or replayed, and do nothing the second time either.
"""

from __future__ import annotations

from datetime import timedelta

from django.core.mail import EmailMessage
from django.db import transaction

from django_durable import Backoff, JobContext, PermanentFailure, job
from django_durable.models import DeadLetter
from testproject.shop import gateway
from testproject.shop.models import Order, Payment, Receipt


@job
def process_order(order_id: int) -> None:
    """Accept the order and have it charged."""
    with transaction.atomic():
        order = Order.objects.get(pk=order_id)
        _move(order, Order.Status.ACCEPTED, old=[Order.Status.NEW])
        charge_payment.using(idempotency_key=order.reference).enqueue(order_id)


def mark_unpaid(dead_letter: DeadLetter) -> None:
    """Note on the order that its payment will not come, for whatever reason the job died."""
    order = Order.objects.get(pk=dead_letter.job.args[0])
    _move(order, Order.Status.UNPAID, old=[Order.Status.ACCEPTED])


@job(
    queue_name="payments",
    takes_context=True,
    max_attempts=5,
    backoff=Backoff(initial=timedelta(seconds=1), factor=2),
    timeout=timedelta(seconds=30),
    on_dead_letter=mark_unpaid,
)
def charge_payment(context: JobContext, order_id: int) -> int:
    """Charge the customer's card and have the receipt sent; return the number of the charge."""
    order = Order.objects.get(pk=order_id)
    try:
        # No transaction is open here: what happens elsewhere can't be rolled back.
        charge_id = gateway.charge(
            key=context.delivery_key,
            customer=order.customer,
            amount=order.amount,
            description=order.reference,
        )
    except gateway.CardRefused as refusal:
        raise PermanentFailure(str(refusal)) from refusal
    with transaction.atomic():
        Payment.objects.get_or_create(
            order=order, defaults={"amount": order.amount, "charge_id": charge_id}
        )
        # Unpaid until now, if somebody replays the dead letter.
        _move(order, Order.Status.PAID, old=[Order.Status.ACCEPTED, Order.Status.UNPAID])
        send_receipt.using(idempotency_key=order.reference).enqueue(order_id)
    return charge_id


@job(queue_name="mail", takes_context=True, max_attempts=5)
def send_receipt(context: JobContext, order_id: int) -> None:
    """Mail the receipt, and keep it."""
    order = Order.objects.get(pk=order_id)
    text = f"Customer {order.customer}\nOrder of {order.date}\nPaid {order.amount}\n"
    EmailMessage(
        subject=f"Receipt {order.pk}",
        body=text,
        to=[f"order-{order.pk}@customers.example"],
        headers={"Message-ID": f"<{context.delivery_key}@shop.example>"},
    ).send()
    with transaction.atomic():
        Receipt.objects.get_or_create(order=order, defaults={"text": text})
        _move(order, Order.Status.DONE, old=[Order.Status.PAID])


def _move(order: Order, status: Order.Status, *, old: list[Order.Status]) -> None:
    """Move the order on from these stations; a job that runs again finds it moved already."""
    Order.objects.filter(pk=order.pk, status__in=old).update(status=status)
