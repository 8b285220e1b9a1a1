"""The standard streams of a worker, which must not end with who reads them."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import TextIO


def open_standard_streams() -> None:
    """Point the standard streams that are closed at nothing.

    Otherwise the next connection gets their descriptor, and with it what others write there.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    for name, number in (("stdout", 1), ("stderr", 2)):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w", closefd=False))


def empty_standard_streams() -> None:
    """Write what the buffers of the standard streams hold; to nothing, where nothing is taken."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            # It would fail again each time. What comes later may be taken again.
            with suppress(OSError, ValueError):
                _write_to_nothing(stream)
        except (AttributeError, ValueError):
            # A job has closed it.
            pass


def _write_to_nothing(stream: TextIO) -> None:
    number = stream.fileno()
    nothing, kept = os.open(os.devnull, os.O_WRONLY), os.dup(number)
    try:
        os.dup2(nothing, number)
        stream.flush()
    finally:
        os.dup2(kept, number)
        os.close(kept)
        os.close(nothing)


def say(text: str) -> None:
    """Write to the standard output; where that takes nothing, write to nothing from now on."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError:
        # What stays in the buffer would fail again at the end, and with it the exit code.
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, 1)
        os.close(nothing)
