"""The claims of a child in memory that its supervisor shares.

The child writes an entry when it has a claim and clears it when the claim's end is recorded; that
costs no system call. The supervisor reads the table to renew leases and to watch over timeouts,
and needs no answer from a child that is stuck. An entry read half written names no existing claim,
and is right the next time.
"""

from __future__ import annotations

import math
import mmap
import os
import struct
import tempfile
import time
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from django_durable.store import Right

# Moments are those of time.monotonic(), which all processes of a machine share.
_BEAT = struct.Struct("=d")
_ENTRY = struct.Struct("=16sqdQQ")
_PROCESS = struct.Struct("=QQ")
_START = 16
_FREE = bytes(16)


class Entry(NamedTuple):
    """Be one claim: its right, when its run times out (infinity: never), and its own process.

    That is its id, 0 if there is none, and when it started.
    """

    right: Right
    deadline: float
    process: tuple[int, int]


class ClaimTable:
    """Share up to `size` claims between a child and its supervisor through a file descriptor."""

    def __init__(self, fd: int, size: int) -> None:
        self.fd = fd
        self.size = size
        self._map = mmap.mmap(fd, _START + size * _ENTRY.size)
        self._free = list(range(size))

    @classmethod
    def create(cls, size: int) -> ClaimTable:
        """Make an empty table in an unnamed file, for a child to inherit."""
        if hasattr(os, "memfd_create"):
            fd = os.memfd_create("durable-claims")
        else:
            fd, path = tempfile.mkstemp(prefix="durable-claims-")
            Path(path).unlink()
        os.ftruncate(fd, _START + size * _ENTRY.size)
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

    def add(self, right: Right, deadline: float | None = None) -> int:
        """Enter a claim; return its place, by which it is cleared."""
        place = self._free.pop()
        # The id last, which makes the entry count.
        offset = _START + place * _ENTRY.size
        limit = math.inf if deadline is None else deadline
        _ENTRY.pack_into(self._map, offset, _FREE, right[1], limit, 0, 0)
        self._map[offset : offset + 16] = right[0].bytes
        return place

    def note_process(self, place: int, pid: int, started: int) -> None:
        """Enter the process in which a claim's run is."""
        end = _START + (place + 1) * _ENTRY.size
        _PROCESS.pack_into(self._map, end - _PROCESS.size, pid, started)

    def remove(self, place: int) -> None:
        """Clear the place of a claim that has ended."""
        offset = _START + place * _ENTRY.size
        self._map[offset : offset + 16] = _FREE
        self._free.append(place)

    def beat(self) -> None:
        """Say that the child's main thread runs."""
        _BEAT.pack_into(self._map, 0, time.monotonic())

    # The supervisor's side.

    @property
    def last_beat(self) -> float:
        """Return when the child's main thread last ran; 0 before it first did."""
        moment: float = _BEAT.unpack_from(self._map, 0)[0]
        return moment

    def entries(self) -> list[Entry]:
        """Read the claims that the child has at this moment."""
        try:
            entries = _ENTRY.iter_unpack(self._map[_START:])
        except ValueError:
            # Another thread has just closed it: the child is dead.
            return []
        return [
            Entry((UUID(bytes=job), epoch), deadline, (pid, started))
            for job, epoch, deadline, pid, started in entries
            if job != _FREE
        ]
