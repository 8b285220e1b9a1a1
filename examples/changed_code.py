"""A deployment changes a workflow while jobs are under way: what is done is not done again."""

import os

from django_durable import JobContext, workflow
from examples.demo import say, wait_until, worker


def first_version(context: JobContext, customer: str) -> str:
    context.step("register", say, f"registering {customer}")
    context.wait_for_signal("paid")
    context.step("welcome", say, f"a letter to {customer}")
    return "by letter"


def second_version(context: JobContext, customer: str) -> str:
    # New, and before what is recorded: it runs now. The rest may stand in another order.
    context.step("check", say, f"checking {customer}")
    by_mail = context.patched("welcome by mail")
    context.step("register", say, f"registering {customer}")
    context.wait_for_signal("paid")
    how = "mail" if by_mail else "letter"
    context.step("welcome", say, f"a {how} to {customer}")
    return f"by {how}"


# In life there is one version in each deployment; here a variable says which is deployed.
deployed = {"1": first_version, "2": second_version}[os.environ.get("EXAMPLES_VERSION", "1")]
sign_up = workflow(name="sign-up")(deployed)


def main() -> None:
    old = sign_up.enqueue("Ada")
    with worker(EXAMPLES_VERSION="1"):
        wait_until(lambda: type(old).objects.get(pk=old.pk).status == "WAITING")
    say("the second version is deployed")
    new = sign_up.enqueue("Grace")
    for job in (old, new):
        job.signal("paid")
    with worker("--concurrency", "1", EXAMPLES_VERSION="2"):
        say(f"Ada was welcomed {old.result(timeout=60)}")
        say(f"Grace was welcomed {new.result(timeout=60)}")
