"""The shop's web side: an address that takes orders, and a page that tells how it goes."""

from __future__ import annotations

import json
import re
from decimal import Decimal
from typing import Any

from django.db.models import Count, Sum
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_GET, require_POST

from django_durable.models import Job
from testproject.shop.forms import OrderForm
from testproject.shop.models import Order
from testproject.shop.orders import OverLimit, ReferenceTaken, place_order
from testproject.shop.tasks import deliver

REFERENCE = re.compile(r"[!-~]{1,200}")
SHOWN = 20


# For programs: no cookie gives a right here, and a form of another site can't send JSON.
@csrf_exempt
@require_POST
def take_order(request: HttpRequest) -> JsonResponse:
    """Take an order: JSON with customer, date and amount, and a header `Idempotency-Key`.

    Answers 201 for a new order, 200 for one that is there already, 409 if the key belongs to a
    different order, 422 for an order over the limit, 400 and 415 for what can't be read.
    """
    if request.content_type != "application/json":
        return _refuse(415, "send application/json")
    reference = request.headers.get("Idempotency-Key", "")
    if not REFERENCE.fullmatch(reference):
        return _refuse(400, "send an Idempotency-Key of 1 to 200 visible ASCII characters")
    form = OrderForm(_read(request.body))
    if not form.is_valid():
        return JsonResponse({"errors": form.errors.get_json_data()}, status=400)
    try:
        order, created = place_order(reference, **form.cleaned_data)
    except ReferenceTaken as error:
        return _refuse(409, str(error))
    except OverLimit as error:
        return _refuse(422, str(error))
    answer = {"id": order.pk, "reference": order.reference, "status": order.status}
    return JsonResponse(answer, status=201 if created else 200)


# A shop of your own asks for a login and a permission first.
@csrf_exempt
@require_POST
def decide(request: HttpRequest, reference: str) -> JsonResponse:
    """Approve or refuse a delivery: JSON with `approved`, true or false.

    Answers 404 for an unknown reference, 409 when it has ended already, 400 for anything else.
    """
    is_approved = _read(request.body).get("approved")
    if not isinstance(is_approved, bool):
        return _refuse(400, 'send {"approved": true} or false')
    try:
        delivered = deliver.signal(reference, "approval", is_approved)
    except Job.DoesNotExist:
        return _refuse(404, "there is no such delivery")
    return JsonResponse({"heard": delivered}, status=200 if delivered else 409)


def _read(body: bytes) -> dict[str, Any]:
    """Return the fields of a JSON object; what is none has no fields."""
    try:
        fields = json.loads(body, parse_float=Decimal)
    except (ValueError, RecursionError):
        return {}
    return fields if isinstance(fields, dict) else {}


def _refuse(status: int, why: str) -> JsonResponse:
    return JsonResponse({"error": why}, status=status)


@require_GET
def show_status(request: HttpRequest) -> HttpResponse:
    """Show how many orders stand where, and the latest."""
    groups = Order.objects.values("status").annotate(orders=Count("pk"), amount=Sum("amount"))
    found = {group["status"]: group for group in groups}
    nothing = {"orders": 0, "amount": Decimal(0)}
    stations = [
        {**found.get(status.value, nothing), "label": status.label} for status in Order.Status
    ]
    latest = Order.objects.order_by("-pk")[:SHOWN]
    return render(request, "shop/status.html", {"stations": stations, "latest": latest})
