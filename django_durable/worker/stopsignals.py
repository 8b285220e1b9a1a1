"""What the processes that run jobs do about signals to stop: nothing, since their supervisor leads.

A stop may be sent to every process at once, by a terminal or a service manager.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

STOPS = (signal.SIGTERM, signal.SIGINT)


def leave_stops_to_the_supervisor() -> None:
    """Do nothing when this process is told to stop; what a job starts or forks obeys as usual."""
    for number in STOPS:
        # A function, since an ignored signal would stay ignored in the programs that jobs start.
        signal.signal(number, _do_nothing)
    # Whoever started this process may have held them off until now.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
    os.register_at_fork(after_in_child=_obey)


@contextmanager
def stops_held_off() -> Iterator[None]:
    """Hold off the signals to stop from what this thread starts, until that is ready for them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _do_nothing(number: int, frame: FrameType | None) -> None:
    pass


def _obey() -> None:
    for number in STOPS:
        if signal.getsignal(number) is _do_nothing:
            signal.signal(number, signal.SIG_DFL)
