"""The shop's workflow: what an order in parcels comes to, and the address that decides about it."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.db.models import Sum
from django.test import Client

from testproject.shop import tasks
from testproject.shop.models import Delivery, GatewayCharge, GatewayRefund, LedgerEntry, Parcel
from testproject.shop.tasks import deliver, place_delivery, ship_parcel
from tests.contract.conftest import advance
from tests.workflows.driving import go

__all__ = ["advance"]

pytestmark = pytest.mark.django_db


@pytest.fixture
def waiting(advance: Any) -> Delivery:
    """A delivery that is charged, booked and shipped, and waits for somebody to decide."""
    delivery = place_delivery("parcels-1", customer="C017", amount=Decimal("12.50"))
    go(deliver, ship_parcel)
    advance(tasks.COOLING_OFF)
    go(deliver, ship_parcel)
    return delivery


def decide(client: Client, body: Any, reference: str = "parcels-1") -> int:
    path = f"/deliveries/{reference}/approval"
    answer = client.post(path, body, content_type="application/json")
    go(deliver, ship_parcel)
    return answer.status_code


def state(delivery: Delivery) -> tuple[str, Decimal, int, int, int]:
    delivery.refresh_from_db()
    booked = LedgerEntry.objects.aggregate(sum=Sum("amount"))["sum"]
    rows = (GatewayCharge.objects, GatewayRefund.objects, Parcel.objects)
    return (delivery.status, booked, *(each.count() for each in rows))


def test_what_is_approved_is_charged_booked_and_shipped_once(
    client: Client, waiting: Delivery
) -> None:
    assert state(waiting) == ("BOOKED", Decimal("12.50"), 1, 0, 3)
    assert decide(client, {"approved": True}) == 200
    assert state(waiting) == ("DONE", Decimal("12.50"), 1, 0, 3)
    assert decide(client, {"approved": False}) == 409


def test_what_is_refused_is_paid_back(client: Client, waiting: Delivery) -> None:
    assert decide(client, {"approved": False}) == 200
    assert state(waiting) == ("REFUNDED", Decimal(0), 1, 1, 3)


def test_what_nobody_decides_is_paid_back(waiting: Delivery, advance: Any) -> None:
    advance(tasks.DECIDED_WITHIN + timedelta(seconds=1))
    go(deliver, ship_parcel)
    assert state(waiting)[0] == "REFUNDED"


@pytest.mark.parametrize("body", [{"approved": "yes"}, {}, b"[", [1]])
def test_what_is_no_decision_is_refused(client: Client, waiting: Delivery, body: Any) -> None:
    assert decide(client, body) == 400
    assert state(waiting)[0] == "BOOKED"


def test_an_unknown_delivery_is_not_found(client: Client) -> None:
    assert decide(client, {"approved": True}, "parcels-2") == 404


@pytest.mark.parametrize("model", ["delivery", "ledgerentry", "parcel"])
@pytest.mark.usefixtures("waiting")
def test_the_admin_shows_it(admin_client: Client, model: str) -> None:
    assert admin_client.get(f"/admin/shop/{model}/").status_code == 200
