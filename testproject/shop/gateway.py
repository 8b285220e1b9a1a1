"""The card gateway: a stand-in for a payment service elsewhere.

It commits by itself, knows nothing of the shop's transactions, and goes by an idempotency key, as
such services do: whoever asks again with the same key gets the charge that was made the first time.
It has its tables in the shop's database only so that the example needs no second service.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal

from django.db import IntegrityError, connection, transaction
from django.db.models import F

from testproject.shop.models import GatewayCharge, GatewayRefund, TestCard


class CardRefused(Exception):  # noqa: N818 - named after what happened
    """The card will never pay: another attempt is of no use."""


class GatewayUnavailable(Exception):  # noqa: N818
    """The gateway is out of order for now: another attempt may work."""


def charge(*, key: str, customer: str, amount: Decimal, description: str) -> int:
    """Charge the customer's card once for this key and return the number of the charge.

    Raise `CardRefused` or `GatewayUnavailable`. A caller that is killed, or that gets no answer,
    can't know whether the charge was made: it asks again with the same key.
    """
    if made := GatewayCharge.objects.filter(key=key).first():
        return made.pk
    if TestCard.objects.filter(customer=customer, refused=True).exists():
        raise CardRefused(f"the card of customer {customer} is refused")
    failing = TestCard.objects.filter(customer=customer, failures__gt=0)
    if failing.update(failures=F("failures") - 1):
        raise GatewayUnavailable("the gateway answers 503 Service Unavailable")
    try:
        return GatewayCharge.objects.create(
            key=key, customer=customer, amount=amount, description=description
        ).pk
    except IntegrityError:  # somebody asked with the same key a moment ago
        return GatewayCharge.objects.get(key=key).pk


def refund(charge_id: int) -> int:
    """Pay a charge back, once, and return the number of the refund."""
    made = GatewayCharge.objects.get(pk=charge_id)
    return GatewayRefund.objects.get_or_create(charge=made, defaults={"amount": made.amount})[0].pk


@contextmanager
def hanging() -> Iterator[None]:
    """Let the gateway take requests but answer none, until the end of the block."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("LOCK TABLE shop_gatewaycharge IN EXCLUSIVE MODE")
        yield
