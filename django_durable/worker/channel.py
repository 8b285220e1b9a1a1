"""Short messages between a supervisor and its child, as lines of JSON over a socket pair."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

# Above this the other side is not reading; further hints would only pile up.
BACKLOG = 1 << 16


class Channel:
    """Send and receive messages; never blocks, whatever state the other side is in."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._lock = threading.Lock()
        self._unsent = b""
        self._unread = b""
        self.closed = False

    def fileno(self) -> int:
        """Return the descriptor to wait on."""
        return self._socket.fileno()

    def send(self, kind: str, *, droppable: bool = False, **content: Any) -> None:
        """Send a message as far as the socket takes it; the rest goes with the next one.

        A droppable one is left out while the other side is not reading.
        """
        with self._lock:
            if droppable and len(self._unsent) > BACKLOG:
                return
            self._unsent += json.dumps({"kind": kind, **content}).encode() + b"\n"
            self._push()

    def flush(self) -> None:
        """Try again to send what did not fit."""
        if self._unsent:
            with self._lock:
                self._push()

    def _push(self) -> None:
        try:
            while self._unsent:
                self._unsent = self._unsent[self._socket.send(self._unsent) :]
        except BlockingIOError:
            return
        except OSError:
            self._unsent = b""
            self.closed = True

    def receive(self) -> Iterator[dict[str, Any]]:
        """Yield the messages that have come; `closed` is set when the other side is gone."""
        while True:
            try:
                data = self._socket.recv(1 << 16)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            if not data:
                self.closed = True
                break
            self._unread += data
        *lines, self._unread = self._unread.split(b"\n")
        for line in lines:
            yield json.loads(line)

    def close(self) -> None:
        """Close this side."""
        self._socket.close()
