"""Named points at which a test may stop or end the process; in production they do nothing."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

# The points of a run. What a step or an end has recorded is committed at the point after it.
POINTS = (
    "after_claim",
    "before_step_record",
    "after_step_record",
    "before_park",
    "before_record",
    "after_record",
)
# Called with the name of each point that is reached: one of these, or a statement of the store by
# the name of its file.
hook: Callable[[str], None] | None = None


def reach(point: str) -> None:
    """Let an armed test act at this point."""
    if hook is not None:
        hook(point)


def arm_from_environment() -> None:
    """Arm the point that `DURABLE_FAULT` names ("point", or "point:n" for its n-th time): SIGKILL.

    For tests of what a process leaves behind that dies between two statements.
    """
    global hook
    wanted = os.environ.get("DURABLE_FAULT")
    if not wanted:
        return
    name, _, count = wanted.partition(":")
    left = int(count or 1)

    def kill(point: str) -> None:
        nonlocal left
        if point == name:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    hook = kill
