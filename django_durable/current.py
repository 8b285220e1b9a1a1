"""Which workflow's function runs here."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from django_durable.context import JobContext

# So that `job.result()` in a workflow parks instead of blocking.
current: ContextVar[JobContext | None] = ContextVar("durable_current", default=None)
