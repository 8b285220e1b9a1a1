"""A provider calls a webhook several times for one event: what it means is done exactly once."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from urllib.request import Request, urlopen
from uuid import uuid4
from wsgiref.simple_server import WSGIRequestHandler, make_server

from django.core.wsgi import get_wsgi_application
from django.http import HttpRequest, JsonResponse
from django.test import override_settings
from django.urls import path
from django.utils import timezone
from django.views.decorators.csrf import csrf_exempt

from django_durable import JobContext, workflow
from examples.demo import say, worker


@workflow
def payment_arrived(context: JobContext, reference: str, amount: str) -> int:
    # The order and the checkpoint are one commit: no crash makes two orders of one payment.
    order: int = context.atomic_step("order", write_order, reference, amount)
    return order


def write_order(reference: str, amount: str) -> int:
    from testproject.shop.models import Order

    say(f"writing the order of {amount}")
    today = timezone.now().date()
    order = Order.objects.create(
        reference=reference, customer="Ada", date=today, amount=Decimal(amount)
    )
    return order.pk


# A project's own view checks the provider's signature first.
@csrf_exempt
def webhook(request: HttpRequest) -> JsonResponse:
    event = json.loads(request.body)
    # The provider's id of the event is the key: its second call finds the job of the first.
    call = payment_arrived.using(idempotency_key=event["id"])
    job = call.enqueue(event["reference"], event["amount"])
    return JsonResponse({"new": job.created, "job": str(job.pk)})


urlpatterns = [path("webhook", webhook)]


class QuietHandler(WSGIRequestHandler):
    """Don't log requests among what the example says."""

    def log_message(self, *arguments: object) -> None:
        """Say nothing."""


@contextmanager
def server() -> Iterator[str]:
    with override_settings(ROOT_URLCONF="examples.webhook"):
        made = make_server("127.0.0.1", 0, get_wsgi_application(), handler_class=QuietHandler)
        threading.Thread(target=made.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{made.server_port}/webhook"
        made.shutdown()
        made.server_close()


def main() -> None:
    event = {"id": f"evt-{uuid4()}", "reference": f"example-{uuid4()}", "amount": "9.90"}
    with server() as url, worker():
        for _ in range(3):
            body = json.dumps(event).encode()
            request = Request(url, data=body, method="POST")  # noqa: S310 - it is our own
            with urlopen(request) as answer:  # noqa: S310
                told = json.loads(answer.read())
                say("a new event" if told["new"] else "this event is known")
        job = payment_arrived.using(idempotency_key=event["id"]).enqueue("", "0")
        order = job.result(timeout=60)
        say(f"one order for three calls: {order > 0}")
