"""UUIDv7 (RFC 9562, section 5.7): ids that sort by the moment they were made."""

from __future__ import annotations

import os
import struct
import threading
import time
from uuid import UUID

_lock = threading.Lock()
_last = 0


def uuid7() -> UUID:
    """Return a new UUIDv7, greater than every one that this process made before."""
    return uuid7s(1)[0]


def uuid7s(count: int) -> list[UUID]:
    """Return so many new UUIDv7, rising, each greater than every one that this process made before.

    The 48-bit millisecond is followed by a 12-bit fraction of it (RFC 9562, section 6.2, method 3)
    and 62 random bits. A clock that stands still or steps back is overtaken by counting on.
    """
    global _last
    # 60 bits: the millisecond and 1/4096ths of it.
    first = time.time_ns() * 4096 // 1_000_000
    with _lock:
        first = max(first, _last + 1)
        _last = first + count - 1
    tails = struct.unpack(f"{count}Q", os.urandom(8 * count))
    return [
        UUID(
            int=(ticks >> 12) << 80
            | 0x7 << 76
            | (ticks & 0xFFF) << 64
            | 0b10 << 62
            | tail & 0x3FFF_FFFF_FFFF_FFFF
        )
        for ticks, tail in enumerate(tails, first)
    ]


def _forget_after_fork() -> None:
    # A lock held by another thread at the fork would never be released in the child.
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_forget_after_fork)
