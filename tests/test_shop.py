"""The shop of the test project: an order and its job are one, and each step may run twice."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from decimal import Decimal
from pathlib import Path

import pytest
from django.core import mail
from django.db import connection
from django.test import Client

from django_durable import PermanentFailure
from django_durable.context import JobContext
from django_durable.models import Job
from testproject.shop import gateway, jobs, sample
from testproject.shop.models import GatewayCharge, Order, Payment, Receipt, TestCard
from testproject.shop.orders import LIMIT, place_order
from tests.by_hand import Hand

ORDER = {"customer": "C017", "date": "2026-03-02", "amount": "12.50"}
PLACED = {"customer": "C017", "date": date(2026, 3, 2), "amount": Decimal("12.50")}


def post(client, order=ORDER, *, key="order-1", content_type="application/json"):
    headers = {"Idempotency-Key": key} if key is not None else {}
    body = order if isinstance(order, bytes) else json.dumps(order)
    return client.post("/orders/", body, content_type=content_type, headers=headers)


def context_of(job_type: object) -> JobContext:
    """Claim the one job of this type and return what its function receives."""
    return JobContext(Hand(job_type.name).take(), job_type, None)


def charge() -> JobContext:
    """Place an order and bring it to the point where its card is to be charged."""
    order, _created = place_order("order-1", **PLACED)
    jobs.process_order.func(order.pk)
    return context_of(jobs.charge_payment)


@pytest.mark.django_db
def test_an_order_is_stored_with_its_job(client):
    response = post(client)
    assert response.status_code == 201
    order = Order.objects.get()
    assert response.json() == {"id": order.pk, "reference": "order-1", "status": "NEW"}
    assert (order.customer, order.date, order.amount) == tuple(PLACED.values())
    job = Job.objects.get()
    assert (job.name, job.args, job.idempotency_key) == (
        "testproject.shop.jobs.process_order",
        [order.pk],
        "order-1",
    )


@pytest.mark.django_db
def test_an_order_sent_again_is_the_one_that_is_there(client):
    first, second = post(client), post(client)
    assert second.status_code == 200
    assert first.json() == second.json()
    assert (Order.objects.count(), Job.objects.count()) == (1, 1)


@pytest.mark.django_db
def test_equal_orders_with_keys_of_their_own_are_different_orders(client):
    assert post(client, key="a").status_code == post(client, key="b").status_code == 201
    assert (Order.objects.count(), Job.objects.count()) == (2, 2)


@pytest.mark.django_db
def test_a_key_belongs_to_one_order(client):
    post(client)
    response = post(client, {**ORDER, "amount": "99.00"})
    assert response.status_code == 409
    assert Order.objects.get().amount == Decimal("12.50")


@pytest.mark.django_db
def test_an_order_over_the_limit_leaves_neither_order_nor_job(client):
    assert post(client, {**ORDER, "amount": str(LIMIT)}, key="at").status_code == 201
    assert post(client, {**ORDER, "amount": str(LIMIT + 1)}, key="over").status_code == 422
    assert Order.objects.get().reference == "at"
    assert Job.objects.get().idempotency_key == "at"


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("status", "request_"),
    [
        (415, {"content_type": "application/x-www-form-urlencoded"}),
        (400, {"key": None}),
        (400, {"key": "x" * 201}),
        (400, {"key": "two words"}),
        (400, {"order": b"{"}),
        (400, {"order": b"\xff"}),
        (400, {"order": b"[" * 100_000}),
        (400, {"order": []}),
        (400, {"order": {}}),
        (400, {"order": {**ORDER, "customer": ""}}),
        (400, {"order": {**ORDER, "customer": "a\x00b"}}),
        (400, {"order": {**ORDER, "customer": "x" * 101}}),
        (400, {"order": {**ORDER, "date": "2026-02-30"}}),
        (400, {"order": {**ORDER, "amount": "-0.01"}}),
        (400, {"order": {**ORDER, "amount": "1.005"}}),
        (400, {"order": {**ORDER, "amount": float("nan")}}),
        (400, {"order": {**ORDER, "amount": True}}),
    ],
)
def test_what_is_no_order_is_refused_and_leaves_nothing(client, status, request_):
    assert post(client, **request_).status_code == status
    assert not Order.objects.exists()
    assert not Job.objects.exists()


@pytest.mark.django_db
def test_an_amount_may_be_a_number(client):
    body = b'{"customer": "C017", "date": "2026-03-02", "amount": 0.10}'
    assert post(client, body).status_code == 201
    assert Order.objects.get().amount == Decimal("0.10")


@pytest.mark.django_db(transaction=True)
def test_one_order_sent_by_many_at_once_is_one_order():
    callers = 8
    together = threading.Barrier(callers)

    def send(_caller: int) -> int:
        try:
            together.wait(timeout=30)
            return post(Client()).status_code
        finally:
            connection.close()

    with ThreadPoolExecutor(callers) as pool:
        answers = list(pool.map(send, range(callers)))
    assert sorted(answers) == [200] * (callers - 1) + [201]
    assert (Order.objects.count(), Job.objects.count()) == (1, 1)


@pytest.mark.django_db
def test_an_order_that_is_processed_twice_is_charged_by_one_job():
    order, _created = place_order("order-1", **PLACED)
    for _ in range(2):
        jobs.process_order.func(order.pk)
    order.refresh_from_db()
    assert order.status == Order.Status.ACCEPTED
    assert Job.objects.get(name=jobs.charge_payment.name).idempotency_key == "order-1"


@pytest.mark.django_db
def test_a_charge_that_is_tried_again_is_made_once():
    context = charge()
    order = Order.objects.get()
    charge_ids = {jobs.charge_payment.func(context, order.pk) for _ in range(2)}
    assert charge_ids == {GatewayCharge.objects.get().pk}
    assert GatewayCharge.objects.get().key == context.delivery_key
    assert Payment.objects.get().charge_id in charge_ids
    assert Job.objects.filter(name=jobs.send_receipt.name).count() == 1
    order.refresh_from_db()
    assert order.status == Order.Status.PAID


@pytest.mark.django_db
def test_a_charge_that_was_made_unheard_is_found_again():
    context = charge()
    order = Order.objects.get()
    made = gateway.charge(
        key=context.delivery_key, customer="C017", amount=order.amount, description="order-1"
    )
    assert jobs.charge_payment.func(context, order.pk) == made
    assert GatewayCharge.objects.count() == 1


@pytest.mark.django_db
def test_a_refused_card_fails_for_good_and_leaves_the_order_unpaid():
    TestCard.objects.create(customer="C017", refused=True)
    context = charge()
    order = Order.objects.get()
    with pytest.raises(PermanentFailure, match="card of customer C017 is refused") as refusal:
        jobs.charge_payment.func(context, order.pk)
    assert not GatewayCharge.objects.exists()
    dead = Hand(jobs.charge_payment.name).kill(context.claim, refusal.value)
    jobs.mark_unpaid(dead.dead_letter)
    order.refresh_from_db()
    assert order.status == Order.Status.UNPAID


@pytest.mark.django_db
def test_an_unpaid_order_is_paid_when_its_dead_letter_is_replayed():
    card = TestCard.objects.create(customer="C017", refused=True)
    context = charge()
    order = Order.objects.get()
    dead = Hand(jobs.charge_payment.name).kill(context.claim, PermanentFailure("refused"))
    jobs.mark_unpaid(dead.dead_letter)
    card.delete()
    dead.dead_letter.replay()
    jobs.charge_payment.func(context_of(jobs.charge_payment), order.pk)
    order.refresh_from_db()
    assert order.status == Order.Status.PAID


@pytest.mark.django_db
def test_a_gateway_that_is_out_of_order_works_after_so_many_failures():
    TestCard.objects.create(customer="C017", failures=2)
    context = charge()
    order = Order.objects.get()
    for _ in range(2):
        with pytest.raises(gateway.GatewayUnavailable):
            jobs.charge_payment.func(context, order.pk)
    assert jobs.charge_payment.func(context, order.pk) == GatewayCharge.objects.get().pk


def keep_mail_in(folder: Path, settings) -> None:
    backend = "testproject.shop.mailbox.EmailBackend"
    if hasattr(mail, "mailers"):  # Django 6.1 and newer
        settings.MAILERS = {"default": {"BACKEND": backend, "OPTIONS": {"file_path": folder}}}
    else:
        settings.EMAIL_BACKEND, settings.EMAIL_FILE_PATH = backend, folder


@pytest.mark.django_db
def test_a_receipt_that_is_sent_again_is_written_once(tmp_path, settings):
    keep_mail_in(tmp_path, settings)
    context = charge()
    order = Order.objects.get()
    jobs.charge_payment.func(context, order.pk)
    receipt = context_of(jobs.send_receipt)
    for _ in range(2):
        jobs.send_receipt.func(receipt, order.pk)
    (message,) = tmp_path.iterdir()
    assert message.name == f"{receipt.delivery_key}@shop.example.eml"
    assert "Paid 12.50" in message.read_text()
    assert "Paid 12.50" in Receipt.objects.get().text
    order.refresh_from_db()
    assert order.status == Order.Status.DONE


@pytest.mark.django_db
def test_the_status_page_shows_how_it_goes_and_escapes_what_customers_are_called(client):
    post(client, {**ORDER, "customer": "<script>"})
    page = client.get("/").content.decode()
    assert "&lt;script&gt;" in page
    assert "<script>" not in page
    assert "12.50" in page


@pytest.mark.django_db
@pytest.mark.parametrize("model", ["order", "payment", "receipt", "gatewaycharge", "testcard"])
def test_the_admin_shows_the_shop(admin_client, model):
    context = charge()
    order = Order.objects.get()
    jobs.charge_payment.func(context, order.pk)
    jobs.send_receipt.func(context_of(jobs.send_receipt), order.pk)
    TestCard.objects.create(customer="C017")
    page = admin_client.get(f"/admin/shop/{model}/")
    assert page.status_code == 200
    assert page.context["cl"].result_count == 1
    assert admin_client.get(f"/admin/shop/{model}/?q=order-1").status_code == 200


@pytest.mark.django_db
def test_not_even_a_superuser_makes_or_deletes_orders_in_the_admin(admin_client):
    order, _created = place_order("order-1", **PLACED)
    assert admin_client.get("/admin/shop/order/add/").status_code == 403
    assert admin_client.post(f"/admin/shop/order/{order.pk}/delete/").status_code == 403


def test_the_sample_is_what_its_script_writes():
    shipped = Path(sample.__file__).parent / "data" / "orders.csv"
    assert shipped.read_text().splitlines() == sample.sample()
