"""Which workflow's function runs here."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING

from django_durable.step_policy import in_step

if TYPE_CHECKING:
    from django_durable.context import JobContext

# So that `job.result()` in a workflow parks instead of blocking.
current: ContextVar[JobContext | None] = ContextVar("durable_current", default=None)


def current_context() -> JobContext | None:
    """Return the context of the workflow that runs here, outside its steps, or None."""
    return None if in_step() else current.get()
