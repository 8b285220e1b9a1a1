"""`python -m testproject.demo`: play the demonstration; every way out leaves nothing behind."""

from __future__ import annotations

import argparse
import fcntl
import os
import signal
import sys
from contextlib import ExitStack
from pathlib import Path

from testproject.demo import DemoError
from testproject.demo.interrupts import Interrupted, Interrupts
from testproject.demo.orders import Plan, read_orders, total
from testproject.demo.processes import CHECKOUT
from testproject.demo.story import Story, count, money
from testproject.postgres_files import ServerError

SAMPLE = CHECKOUT / "testproject" / "shop" / "data" / "orders.csv"
LOGS = CHECKOUT / ".local" / "demo"


def main() -> int:
    """Play; return 0 if the books agree, 1 if not or if something failed, 128 + n after signal n.

    Once the books are closed a signal is the asked-for end, and the books' verdict stands.
    """
    arguments = parse_arguments()
    interrupts = Interrupts(sys.stdout)
    story = Story(sys.stdout)
    try:
        with ExitStack() as stack:
            return play(arguments, story, interrupts, stack)
    except Interrupted as interrupt:
        print(f"\nStopped by {interrupt}; nothing is left running.")
        return 128 + interrupt.number
    except (DemoError, ServerError) as error:
        print(f"\n{error}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        # Whoever read the story has left, so nobody is there to be told.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="make demo", description="A shop on durable jobs.")
    add = parser.add_argument
    add("--orders", type=Path, default=SAMPLE, help="a CSV of customer, date and amount")
    add("--once", action="store_true", help="end with the books instead of at Ctrl-C")
    add(
        "--lease", type=float, default=5.0, help="seconds after which a dead worker's jobs are free"
    )
    add("--logs", type=Path, default=LOGS, help="a folder for the logs")
    return parser.parse_args()


def play(
    arguments: argparse.Namespace, story: Story, interrupts: Interrupts, stack: ExitStack
) -> int:
    """Play the story and, unless it is to be played `once`, keep everything running after it."""
    plan = Plan(read_orders(arguments.orders))
    customers = len({row.customer for row in plan.rows})
    story.title(
        f"{count(len(plan.rows), 'order')} of {count(customers, 'customer')},"
        f" {money(total(plan.rows))} in all, for a shop whose work is durable jobs"
    )
    take_turn(arguments.logs, stack)
    set_up_django()
    interrupts.check()
    from testproject.demo.acts import Acts

    acts = Acts(plan, story, interrupts, stack, folder=arguments.logs, lease=arguments.lease)
    agrees = acts.play()
    acts.invite()
    if arguments.once:
        story.say("Played once: everything ends now.")
    else:
        story.say("Everything runs on until Ctrl-C.")
        try:
            acts.stay()
        except Interrupted:
            story.say("Everything ends now.")
    return 0 if agrees else 1


def take_turn(folder: Path, stack: ExitStack) -> None:
    """Make the folder for the logs, and hold it against another demonstration."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = stack.enter_context((folder / "lock").open("w"))
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise DemoError("Another demonstration runs in this checkout: end it first.") from error


def set_up_django() -> None:
    """Import the settings, which starts PostgreSQL where DATABASE_URL names none."""
    os.environ["DJANGO_SETTINGS_MODULE"] = "testproject.settings"
    import django

    django.setup()


if __name__ == "__main__":
    sys.exit(main())
