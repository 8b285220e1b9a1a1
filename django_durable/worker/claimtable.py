"""The claims of a child in memory that its supervisor shares.

The child writes an entry when it has a claim and clears it when the claim's end is recorded; that
costs no system call. The supervisor reads the table to renew leases, and needs no answer from a
child that is stuck. An entry read half written names no existing claim, and is right the next time.
"""

from __future__ import annotations

import mmap
import os
import struct
import tempfile
from uuid import UUID

from django_durable.store import Right

_ENTRY = struct.Struct("=16sq")
_FREE = bytes(16)


class ClaimTable:
    """Share up to `size` claims between a child and its supervisor through a file descriptor."""

    def __init__(self, fd: int, size: int) -> None:
        self.fd = fd
        self.size = size
        self._map = mmap.mmap(fd, size * _ENTRY.size)
        self._free = list(range(size))
        self._places: dict[Right, int] = {}

    @classmethod
    def create(cls, size: int) -> ClaimTable:
        """Make an empty table in an unnamed file, for a child to inherit."""
        if hasattr(os, "memfd_create"):
            fd = os.memfd_create("durable-claims")
        else:
            fd, path = tempfile.mkstemp(prefix="durable-claims-")
            os.unlink(path)
        os.ftruncate(fd, size * _ENTRY.size)
        return cls(fd, size)

    def close(self) -> None:
        """Let the memory go."""
        self._map.close()
        os.close(self.fd)

    # The child's side; its callers hold one lock.

    @property
    def free(self) -> int:
        """Return how many more claims fit."""
        return len(self._free)

    def add(self, right: Right) -> None:
        """Enter a claim."""
        place = self._free.pop()
        self._places[right] = place
        # The epoch first, then the id that makes the entry count.
        offset = place * _ENTRY.size
        _ENTRY.pack_into(self._map, offset, _FREE, right[1])
        self._map[offset : offset + 16] = right[0].bytes

    def remove(self, right: Right) -> None:
        """Clear a claim that has ended."""
        place = self._places.pop(right)
        self._map[place * _ENTRY.size : place * _ENTRY.size + 16] = _FREE
        self._free.append(place)

    # The supervisor's side.

    def rights(self) -> list[Right]:
        """Read the claims that the child has at this moment."""
        entries = _ENTRY.iter_unpack(self._map[:])
        return [(UUID(bytes=job), epoch) for job, epoch in entries if job != _FREE]
