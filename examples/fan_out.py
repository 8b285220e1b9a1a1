"""A workflow starts children, in bulk, and goes on when all have ended."""

from django_durable import JobContext, PermanentFailure, job, workflow
from examples.demo import say, worker


@job
def count_words(text: str) -> int:
    if not text:
        raise PermanentFailure("an empty page")
    return len(text.split())


@workflow
def count_all(context: JobContext, pages: list[str]) -> str:
    children = context.start_many("page", count_words, [((page,), {}) for page in pages])
    counts = context.gather(children, return_exceptions=True)
    good = [count for count in counts if isinstance(count, int)]
    return f"{sum(good)} words on {len(good)} of {len(pages)} pages"


def main() -> None:
    parent = count_all.enqueue(["one two", "three", "", "four five six"])
    with worker():
        say(parent.result(timeout=60))
    say(f"the tree has {parent.tree().count()} jobs")
