"""The subcommands of `manage.py durable`, each a class with a method for each of its two forms."""

from django_durable.management.subcommands.base import Report, Subcommand
from django_durable.management.subcommands.cancelling import Cancel
from django_durable.management.subcommands.enqueueing import Enqueue
from django_durable.management.subcommands.health import Health
from django_durable.management.subcommands.listing import Jobs, Status, Workers
from django_durable.management.subcommands.pruning import Prune
from django_durable.management.subcommands.queues import Limit, Pause, Resume
from django_durable.management.subcommands.rehearsing import ReplayCheck
from django_durable.management.subcommands.replaying import Replay
from django_durable.management.subcommands.scheduling import Schedules
from django_durable.management.subcommands.showing import Show
from django_durable.management.subcommands.signalling import Signal

SUBCOMMANDS: dict[str, Subcommand] = {
    subcommand.name: subcommand
    for subcommand in (
        Status(),
        Health(),
        Jobs(),
        Show(),
        Enqueue(),
        Signal(),
        Cancel(),
        Replay(),
        ReplayCheck(),
        Pause(),
        Resume(),
        Limit(),
        Workers(),
        Schedules(),
        Prune(),
    )
}

__all__ = ["SUBCOMMANDS", "Report", "Subcommand"]
