"""The terminal: numbered acts, short sentences, figures in columns, and progress while it waits."""

from __future__ import annotations

import os
import textwrap
import time
from collections.abc import Sequence
from decimal import Decimal
from typing import TextIO

WIDTH = 84
INDENT = "   "
# Where the output is no terminal, a line of progress comes so often.
QUIET_SECONDS = 2.0

BOLD, DIM, GREEN, RED = "1", "2", "32", "31"


class Story:
    """Write to a stream; colours and moving counters only where it is a terminal that has them."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.is_terminal = stream.isatty() and os.environ.get("TERM") != "dumb"
        self._colours = self.is_terminal and not os.environ.get("NO_COLOR")
        self._acts = 0

    def title(self, text: str) -> None:
        """Write the first line."""
        self._line(self._paint(text, BOLD))

    def act(self, title: str) -> None:
        """Begin the next act."""
        self._acts += 1
        self._line("")
        self._line(self._paint(f"{self._acts}  {title}", BOLD))

    def say(self, text: str) -> None:
        """Write a sentence or a few, folded to the width of the page."""
        for line in textwrap.wrap(text, WIDTH - len(INDENT), break_on_hyphens=False):
            self._line(INDENT + line)

    def fact(self, label: str, value: str) -> None:
        """Write a label and its value in two columns."""
        self._line(f"{INDENT}{label:<13}{value}")

    def table(self, head: Sequence[str], rows: Sequence[tuple[str, str, str, bool]]) -> None:
        """Write rows of a label, two figures and a verdict."""
        self._line(self._paint(f"{INDENT}{head[0]:<44}{head[1]:>14}{head[2]:>14}", DIM))
        for label, expected, found, agrees in rows:
            verdict = self._paint("ok", GREEN) if agrees else self._paint("WRONG", RED)
            self._line(f"{INDENT}{label:<44}{expected:>14}{found:>14}  {verdict}")

    def verdict(self, text: str, *, good: bool) -> None:
        """Write what it all came to."""
        self._line(INDENT + self._paint(text, f"{BOLD};{GREEN if good else RED}"))

    def progress(self, what: str, total: int) -> Progress:
        """Return a counter of things done."""
        return Progress(self, what, total)

    def redraw(self, text: str) -> None:
        """Write a line over the last one, if that was redrawn too."""
        self._stream.write(f"\r{INDENT}{text}\x1b[K")
        self._stream.flush()

    def erase(self) -> None:
        """Make room where a line was redrawn."""
        self._stream.write("\r\x1b[K")
        self._stream.flush()

    def _paint(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self._colours else text

    def _line(self, text: str) -> None:
        self._stream.write(f"{text}\n")
        self._stream.flush()


class Progress:
    """Show how far something is: in place on a terminal, else in a line now and then."""

    def __init__(self, story: Story, what: str, total: int) -> None:
        self._story = story
        self._what = what
        self.total = total
        self._shown_at = time.monotonic()

    def show(self, done: int, remark: str = "") -> None:
        """Show the number done, and a remark."""
        text = f"{done:,} of {self.total:,} {self._what}{remark and ': '}{remark}"
        if self._story.is_terminal:
            self._story.redraw(text)
        elif time.monotonic() > self._shown_at + QUIET_SECONDS:
            self._shown_at = time.monotonic()
            self._story.say(text)

    def end(self) -> None:
        """Make room for the sentence that says what it came to."""
        if self._story.is_terminal:
            self._story.erase()


def money(amount: Decimal) -> str:
    """Return an amount with two decimals and its thousands parted."""
    return f"{amount:,.2f}"


def count(number: int, thing: str, things: str = "") -> str:
    """Return a number with its noun."""
    return f"{number:,} {thing if number == 1 else things or thing + 's'}"
