"""Named points at which a test may stop or end the process; in production they do nothing."""

from __future__ import annotations

from collections.abc import Callable

# Called with the name of each point that is reached: every statement of the store by the name of
# its file, and the points of the run (`after_claim`, `before_record`, `after_record`).
hook: Callable[[str], None] | None = None


def reach(point: str) -> None:
    """Let an armed test act at this point."""
    if hook is not None:
        hook(point)
