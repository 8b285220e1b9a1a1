"""A workflow is a plain function; each of its steps is done once and for all."""

from django_durable import JobContext, workflow
from examples.demo import say, worker


@workflow
def greet(context: JobContext, name: str) -> str:
    greeting = context.step("compose", compose, name)
    context.step("deliver", say, greeting)
    return f"delivered: {greeting}"


def compose(name: str) -> str:
    return f"Hello, {name}!"


def main() -> None:
    job = greet.enqueue("world")
    with worker():
        say(job.result(timeout=60))
    for step in job.steps.order_by("ordinal"):
        say(f"{step.name}: {step.status}")
