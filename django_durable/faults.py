"""Named points at which a test may stop or end the process; in production they do nothing."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

# Called with the name of each point that is reached: every statement of the store by the name of
# its file, and the points of the run (`after_claim`, `before_record`, `after_record`).
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
