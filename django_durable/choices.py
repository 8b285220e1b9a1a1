"""The closed sets of values that the tables and the public API share."""

from __future__ import annotations

from enum import IntEnum, StrEnum

from django.db.models import TextChoices
from django.utils.translation import gettext_lazy as _


class Priority(IntEnum):
    """Name the common priorities; any whole number from -100 to 100 is one too, higher first."""

    LOW = -10
    NORMAL = 0
    HIGH = 10
    CRITICAL = 20


# The key of `metadata` that makes a job an undo job; its value is the id of what it takes back.
UNDO = "undo"
MIN_PRIORITY = -100
MAX_PRIORITY = 100


class OnDuplicate(StrEnum):
    """Say what `enqueue` does when a job of the same type and idempotency key exists."""

    RETURN_EXISTING = "return_existing"
    RETURN_LIVE = "return_live"
    ALLOW_REUSE = "allow_reuse"
    ALLOW_REUSE_ON_FAILURE = "allow_reuse_on_failure"
    NO_REUSE = "no_reuse"
    REPLACE = "replace"


class JobStatus(TextChoices):
    """Name the states of a job; `docs/explanation/architecture.md` draws the moves between them."""

    READY = "READY", _("Ready")
    RUNNING = "RUNNING", _("Running")
    WAITING = "WAITING", _("Waiting")
    SUCCESSFUL = "SUCCESSFUL", _("Successful")
    DEAD = "DEAD", _("Dead")
    CANCELLED = "CANCELLED", _("Cancelled")


FINISHED = (JobStatus.SUCCESSFUL, JobStatus.DEAD, JobStatus.CANCELLED)
LIVE = (JobStatus.READY, JobStatus.RUNNING, JobStatus.WAITING)


class AttemptOutcome(TextChoices):
    """Name the ways in which an attempt ends without a result."""

    FAILED = "failed", _("failed")
    TIMED_OUT = "timed_out", _("timed out")
    LOST = "lost", _("lost")
    CANCELLED = "cancelled", _("cancelled")


class StepKind(TextChoices):
    """Name the kinds of checkpoints; names are unique within one job per kind."""

    STEP = "step", _("step")
    SLEEP = "sleep", _("sleep")
    SIGNAL = "signal", _("signal")
    CHILD = "child", _("child")
    VALUE = "value", _("value")
    PATCH = "patch", _("patch")
    COMPENSATION = "compensation", _("compensation")


class StepStatus(TextChoices):
    """Name the states of a checkpoint; the last two are final."""

    PENDING = "pending", _("pending")
    SUCCEEDED = "succeeded", _("succeeded")
    FAILED = "failed", _("failed")


class DeathReason(TextChoices):
    """Name the reasons for which a job is never tried again."""

    EXHAUSTED = "exhausted", _("exhausted: the last attempt failed or timed out")
    PERMANENT = "permanent", _("permanent: an error that no further attempt can mend")
    LOST = "lost", _("lost: the worker of the last attempt died")
    UNDECODABLE = "undecodable", _("undecodable: the payload cannot be read")
    UNSTORABLE = "unstorable", _("unstorable: the result cannot be stored")


class CatchUp(TextChoices):
    """Say which of the ticks that a schedule has missed run."""

    ONE = "one", _("the newest")
    SKIP = "skip", _("none")
    ALL = "all", _("each")


class Overlap(TextChoices):
    """Say what a tick does while the job of the tick before it has not ended."""

    ALLOW = "allow", _("run beside it")
    SKIP = "skip", _("skip")
