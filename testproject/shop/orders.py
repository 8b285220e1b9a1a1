"""Taking an order: the one place where an order and its job are made."""

from __future__ import annotations

from datetime import date
from decimal import Decimal

from django.db import transaction

from testproject.shop.jobs import process_order
from testproject.shop.models import Order

# Larger orders are agreed on in person.
LIMIT = Decimal("1000000.00")


class OverLimit(Exception):  # noqa: N818 - named after what happened
    """The order is too large to be taken here."""


class ReferenceTaken(Exception):  # noqa: N818
    """Another order has this reference."""


@transaction.atomic
def place_order(
    reference: str, *, customer: str, date: date, amount: Decimal
) -> tuple[Order, bool]:
    """Store the order and enqueue its job; return the order, and whether this call made it.

    The order and the job are one commit. A reference that has its order already returns that one,
    also to callers at the same moment. Raise `ReferenceTaken` if that order is a different one, and
    `OverLimit` above `LIMIT`; neither leaves anything behind.
    """
    wanted = {"customer": customer, "date": date, "amount": amount}
    order, created = Order.objects.get_or_create(reference=reference, defaults=wanted)
    if not created:
        if any(getattr(order, field) != value for field, value in wanted.items()):
            raise ReferenceTaken(f"another order has the reference {reference}")
        return order, False
    process_order.using(idempotency_key=reference).enqueue(order.pk)
    # Checked last, where it takes back what was done: neither the order nor its job ever existed.
    if amount > LIMIT:
        raise OverLimit(f"an order of more than {LIMIT:,} can't be placed here")
    return order, True
