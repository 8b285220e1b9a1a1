"""A TCP proxy that swallows, on demand, what passes through it."""

from __future__ import annotations

import contextlib
import socket
import threading


class SwallowingProxy:
    """Pass bytes on between clients and a server; from `swallow` on, take them and do nothing.

    `swallow` holds for the connections there are; for new ones too, if `all_new`. The kernel goes
    on to acknowledge what the clients send, so nothing but the missing answers can tell them.
    """

    def __init__(self, host: str, port: int) -> None:
        self._server = (host, port)
        self._swallowed: set[socket.socket] = set()
        self._open: set[socket.socket] = set()
        self._swallow_new = False
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def swallow(self, *, all_new: bool = False) -> int:
        """Let nothing pass from now on; return how many connections that concerns."""
        with self._lock:
            self._swallow_new = all_new
            self._swallowed |= self._open
            return len(self._open) // 2

    def heal(self) -> None:
        """Let new connections pass; the old ones stay as they are."""
        self._swallow_new = False

    def close(self) -> None:
        """Close everything."""
        self._listener.close()
        for end in list(self._open):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _address = self._listener.accept()
                server = socket.create_connection(self._server)
                with self._lock:
                    self._open |= {client, server}
                    if self._swallow_new:
                        self._swallowed |= {client, server}
                for source, target in ((client, server), (server, client)):
                    threading.Thread(target=self._pump, args=(source, target), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if source not in self._swallowed:
                    target.sendall(data)
        with self._lock:
            swallowed = source in self._swallowed
            self._open.discard(source)
        if not swallowed:
            with contextlib.suppress(OSError):
                target.shutdown(socket.SHUT_WR)
        # Both pumps end with their own source.
        source.close()
