"""The sweeper: deletes what is kept no longer, in a child's thread that may wait."""

from __future__ import annotations

import time

from django_durable import store

# After a batch it rests for as long as that took; while jobs run for three times as long, since
# they need the rest of a small server.
REST = 1.0
REST_WHILE_BUSY = 3.0
LONGEST_REST = 1.0


class Sweeper:
    """Sweep a batch at a time, and remember where the sweep stands."""

    def __init__(self) -> None:
        self._position = store.Position()

    def step(self, *, is_busy: bool) -> float | None:
        """Sweep a batch; return for how many seconds to rest then, None when all has been seen."""
        started = time.monotonic()
        swept = store.sweep(store.connection(), self._position)
        took = time.monotonic() - started
        rest = REST_WHILE_BUSY if is_busy else REST
        return min(rest * took, LONGEST_REST) if swept.more else None
