"""What becomes of an order that goes out in parcels: a workflow, which is one function.

What it has done is recorded, so a worker that is killed anywhere in it leaves the rest to another.
The gateway is elsewhere and goes by the key; what is in the shop's database is an atomic step.
"""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from typing import Any

from django.db import transaction

from django_durable import JobContext, Priority, SignalTimeout, workflow
from testproject.shop import gateway
from testproject.shop.models import Delivery, LedgerEntry, Parcel

PARCELS = 3
COOLING_OFF = timedelta(seconds=2)
DECIDED_WITHIN = timedelta(minutes=10)


@workflow(queue_name="deliveries")
def deliver(context: JobContext, delivery_id: int) -> str:
    """Charge, book, ship, wait for somebody's decision, and pay back if it is a refusal."""
    charge_id = context.step("charge", charge_card, delivery_id, key=context.delivery_key)
    context.atomic_step("book", book, delivery_id)
    calls: list[Any] = [((delivery_id, number), {}) for number in range(1, PARCELS + 1)]
    context.gather(context.start_many("parcel", ship_parcel, calls))
    context.sleep("cooling-off", COOLING_OFF)
    try:
        is_approved = context.wait_for_signal("approval", timeout=DECIDED_WITHIN)
    except SignalTimeout:
        is_approved = False
    if is_approved:
        context.atomic_step("approve", settle, delivery_id, Delivery.Status.DONE)
        return "approved"
    context.step("refund", gateway.refund, charge_id)
    context.atomic_step("unbook", unbook, delivery_id)
    return "paid back"


def charge_card(delivery_id: int, *, key: str) -> int:
    """Charge the customer's card; return the number of the charge."""
    delivery = Delivery.objects.get(pk=delivery_id)
    return gateway.charge(
        key=key,
        customer=delivery.customer,
        amount=delivery.amount,
        description=delivery.reference,
    )


def book(delivery_id: int) -> None:
    """Enter the amount in the ledger."""
    delivery = Delivery.objects.get(pk=delivery_id)
    LedgerEntry.objects.create(delivery=delivery, amount=delivery.amount)
    settle(delivery_id, Delivery.Status.BOOKED)


def unbook(delivery_id: int) -> None:
    """Take the amount out of the ledger again."""
    delivery = Delivery.objects.get(pk=delivery_id)
    LedgerEntry.objects.create(delivery=delivery, amount=-delivery.amount)
    settle(delivery_id, Delivery.Status.REFUNDED)


def settle(delivery_id: int, status: str) -> None:
    """Move the delivery on."""
    Delivery.objects.filter(pk=delivery_id).update(status=status)


@workflow(queue_name="deliveries")
def ship_parcel(context: JobContext, delivery_id: int, number: int) -> int:
    """Send one parcel; return its number."""
    context.atomic_step("send", send_parcel, delivery_id, number)
    return number


def send_parcel(delivery_id: int, number: int) -> None:
    """Note that the parcel has left."""
    Parcel.objects.create(delivery_id=delivery_id, number=number)


@transaction.atomic
def place_delivery(reference: str, *, customer: str, amount: Decimal) -> Delivery:
    """Store the delivery and enqueue its workflow, in one commit."""
    delivery = Delivery.objects.create(reference=reference, customer=customer, amount=amount)
    deliver.using(idempotency_key=reference, priority=Priority.HIGH).enqueue(delivery.pk)
    return delivery
