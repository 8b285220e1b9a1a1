"""Records are kept as long as their job type says, then they are gone, and so are their keys."""

from datetime import timedelta
from uuid import uuid4

from django_durable import JobContext, job, workflow
from django_durable.models import Job
from examples.demo import say, wait_until, worker


@job(keep_completed=timedelta(seconds=2))
def resize(image: str) -> str:
    return f"{image} is resized"


@job(keep_completed=timedelta(0))
def touch(image: str) -> None:
    """Leave nothing behind."""


@workflow(keep_completed=None)
def publish(context: JobContext, image: str) -> str:
    # Kept as long as the tree that it belongs to, which is for ever.
    resized: str = context.call("resize", resize, image)
    return f"{resized} and published"


def main() -> None:
    name = f"image-{uuid4()}"
    brief = resize.using(idempotency_key=name).enqueue(name)
    nothing = touch.enqueue(name)
    tree = publish.enqueue(name)
    with worker():
        say(brief.result(timeout=60).replace(name, "the image"))
        say(tree.result(timeout=60).replace(name, "the image"))

        wait_until(lambda: not Job.objects.filter(pk=brief.pk).exists())
        say("two seconds later its record reads as gone")
        again = resize.using(idempotency_key=name).enqueue(name)
        say(f"its key is free again: {again.created}")
        again.result(timeout=60)

        wait_until(lambda: not Job.all_objects.filter(pk__in=[brief.pk, nothing.pk]).exists())
        say("a worker has deleted the row")
        say(f"the tree of the workflow is there: {tree.tree().count()} jobs")
    tree.delete()
