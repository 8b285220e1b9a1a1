"""When a child has done enough, and another is to take its place."""

from __future__ import annotations

import resource
import sys
import time
from pathlib import Path

from django_durable.worker.options import WorkerOptions
from django_durable.worker.runs import Runs

MEBIBYTE = 1 << 20
CHECK_MEMORY_EVERY = 1.0


class Recycling:
    """Know the limits of a child's life."""

    def __init__(self, options: WorkerOptions, runs: Runs) -> None:
        self._options = options
        self._runs = runs
        self._started = time.monotonic()
        self._checked_at = 0.0
        # The MiB of a child that was over its bound before it had taken a job.
        self.used_at_start: float | None = None

    def due(self) -> str | None:
        """Return why the child is to be replaced, or None."""
        options, now = self._options, time.monotonic()
        if self._runs.stuck:
            return "a thread goes on after its timeout"
        if options.max_jobs is not None and self._runs.taken >= options.max_jobs:
            return f"it has taken {self._runs.taken} jobs"
        if options.max_seconds is not None and now - self._started >= options.max_seconds:
            return f"it is {now - self._started:.0f} s old"
        if options.max_rss is not None and now - self._checked_at >= CHECK_MEMORY_EVERY:
            self._checked_at = now
            used = resident_bytes() / MEBIBYTE
            if used > options.max_rss:
                if self._runs.taken:
                    return f"it uses {used:.0f} MiB of memory"
                # Its successor would be no smaller, nor would any after it.
                self.used_at_start = used
        return None


def resident_bytes() -> int:
    """Return the resident memory of this process; its peak where the system tells no more."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
