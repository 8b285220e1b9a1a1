"""Two workflows and another process wait for the end of one job, which they know by its key."""

import subprocess
import sys

from django_durable import JobContext, workflow
from django_durable.models import Job
from examples.demo import say, wait_until, worker

ELSEWHERE = """
import sys, django
django.setup()
from django_durable.models import Job
print("another process:", Job.objects.get(pk=sys.argv[1]).result(timeout=60), flush=True)
"""


@workflow
def build_index(context: JobContext) -> str:
    context.wait_for_signal("go")
    return "the index of today"


@workflow
def publish(context: JobContext, what: str, day: str) -> str:
    index = build_index.using(idempotency_key=day).enqueue()
    return f"{what} with {index.result()}"


def main() -> None:
    from uuid import uuid4

    day = f"today-{uuid4()}"
    pages = [publish.enqueue(what, day) for what in ("news", "letter")]
    waiting = Job.objects.filter(pk__in=[page.pk for page in pages], status="WAITING")
    with worker():
        wait_until(lambda: waiting.count() == 2)
        index = Job.objects.by_key(build_index, day).get()
        with subprocess.Popen([sys.executable, "-c", ELSEWHERE, str(index.pk)]):
            index.signal("go")
            for page in pages:
                say(page.result(timeout=60))
