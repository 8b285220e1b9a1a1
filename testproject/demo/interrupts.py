"""Ctrl-C and the like: noted when they come, heard where it is safe to stop."""

from __future__ import annotations

import select
import signal
import socket
from typing import Any, TextIO


class Interrupted(Exception):  # noqa: N818 - it is no error
    """Somebody asked the demonstration to end."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


class Interrupts:
    """Turn SIGINT, SIGTERM and SIGHUP into an exception, but only where it is asked for.

    Raised anywhere, it could come between the start of a process and the note that it has to be
    stopped. `output` is where the story is written: once nobody can read it any more, be it a pipe
    or a terminal, there is no point in going on either.
    """

    def __init__(self, output: TextIO) -> None:
        self._number = 0
        self._poll = select.poll()
        self._output = output.fileno()
        self._poll.register(self._output, 0)  # a hang-up shows without being asked for
        self._wakeup, self._wakeup_write = socket.socketpair()
        for end in (self._wakeup, self._wakeup_write):
            end.setblocking(False)
        self._poll.register(self._wakeup, select.POLLIN)
        signal.set_wakeup_fd(self._wakeup_write.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # `nohup` has a hang-up ignored, and shells an interrupt of what is in the background.
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self._note)

    def _note(self, number: int, frame: Any) -> None:
        self._number = self._number or number

    def check(self) -> None:
        """Raise `Interrupted` if there was a signal."""
        if self._number:
            raise Interrupted(self._number)

    def pause(self, seconds: float) -> None:
        """Wait so long, or until there is a signal, and then `check`.

        Raise `BrokenPipeError` if nobody is left to read the output.
        """
        self.check()
        ready = self._poll.poll(seconds * 1000)
        self.check()
        if any(file == self._output for file, _event in ready):
            raise BrokenPipeError
