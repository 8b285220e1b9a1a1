"""A workflow waits for somebody's decision, which comes over HTTP."""

import json
import threading
from datetime import timedelta
from urllib.request import Request, urlopen
from wsgiref.simple_server import WSGIRequestHandler, make_server

from django.core.wsgi import get_wsgi_application
from django.http import HttpRequest, JsonResponse
from django.test import override_settings
from django.urls import path
from django.views.decorators.csrf import csrf_exempt

from django_durable import JobContext, SignalTimeout, workflow
from examples.demo import say, worker


@workflow
def refund(context: JobContext, amount: int) -> str:
    try:
        decision = context.wait_for_signal("decision", timeout=timedelta(days=2))
    except SignalTimeout:
        return "nobody decided"
    if not decision["approved"]:
        return "refused"
    context.step("pay", say, f"paying {amount} back")
    return f"approved by {decision['by']}"


# A project's own view asks for a login and a permission first.
@csrf_exempt
def decide(request: HttpRequest, key: str) -> JsonResponse:
    return JsonResponse({"delivered": refund.signal(key, "decision", json.loads(request.body))})


urlpatterns = [path("refunds/<str:key>/decision", decide)]


class QuietHandler(WSGIRequestHandler):
    """Don't log requests among what the example says."""

    def log_message(self, *arguments: object) -> None:
        """Say nothing."""


def main() -> None:
    from uuid import uuid4

    key = f"refund-{uuid4()}"
    job = refund.using(idempotency_key=key).enqueue(40)
    with override_settings(ROOT_URLCONF="examples.human_approval"), worker():
        server = make_server("127.0.0.1", 0, get_wsgi_application(), handler_class=QuietHandler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        body = json.dumps({"approved": True, "by": "Ada"}).encode()
        url = f"http://127.0.0.1:{server.server_port}/refunds/{key}/decision"
        with urlopen(Request(url, data=body, method="POST")) as answer:
            say(answer.read().decode())
        say(job.result(timeout=60))
        server.shutdown()
        server.server_close()
