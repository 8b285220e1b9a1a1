"""The sweeper: deletes what is kept no longer, in a child's thread that may wait."""

from __future__ import annotations

import time

from django_durable import store

# After a batch it rests for three times as long as that took, so that it takes a quarter of a
# connection at most: on a small server jobs need the rest.
REST = 3.0
LONGEST_REST = 1.0


class Sweeper:
    """Sweep a batch at a time, and remember where the sweep stands."""

    def __init__(self) -> None:
        self._position = store.Position()

    def step(self) -> float | None:
        """Sweep a batch; return for how many seconds to rest then, None when all has been seen."""
        started = time.monotonic()
        swept = store.sweep(store.connection(), self._position)
        took = time.monotonic() - started
        return min(REST * took, LONGEST_REST) if swept.more else None
