"""Some jobs need a machine of a kind: they wait for a worker that has what they require."""

from django_durable import job
from django_durable.models import Job
from examples.demo import say, wait_until, worker


@job(requires="gpu")
def encode(title: str) -> str:
    return f"{title} is encoded"


@job
def draw_poster(title: str) -> str:
    return f"the poster of {title} is drawn"


def tell(job: Job) -> None:
    text = job.result(timeout=60)
    say(f"{text} by the worker {Job.objects.get(pk=job.pk).worker}")


def main() -> None:
    film = encode.enqueue("the film")
    with worker("--name", "without"):
        tell(draw_poster.enqueue("the film"))
        # It is not lost, and says what it waits for.
        wait_until(lambda: "capability" in film.blocked_on)
        say(film.blocked_on)
    with worker("--name", "with a GPU", "--capability", "gpu"):
        tell(film)
        tell(draw_poster.enqueue("the trailer"))
