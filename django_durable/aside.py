"""Users' code that is asked aside: in a thread of its own, and waited for only so long.

A worker asks it in the middle of what others wait for. What hangs there, on a lock or a host that
is away, must keep nothing but itself.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from queue import Empty, SimpleQueue
from typing import Any

from django.db import connections

# In seconds.
LIMIT = 2.0
# How many threads may hang at once.
MOST = 8
# After so many seconds without a question a thread lets go of its connections.
REST = 1.0


class _Question:
    """Be one call, and what it comes to."""

    value: Any = None
    error: BaseException | None = None

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self.done = threading.Event()

    def answer(self) -> None:
        try:
            self.value = self._call()
        except BaseException as error:  # noqa: BLE001 - raised where it was asked
            self.error = error
        self.done.set()


class _Hand:
    """Be one thread that answers questions until it is let go."""

    def __init__(self) -> None:
        self._questions: SimpleQueue[_Question | None] = SimpleQueue()
        self.thread = threading.Thread(target=self._run, name="users' keys", daemon=True)
        self.thread.start()

    def put(self, question: _Question | None) -> None:
        self._questions.put(question)

    def _run(self) -> None:
        while (question := self._next()) is not None:
            question.answer()
        connections.close_all()

    def _next(self) -> _Question | None:
        try:
            return self._questions.get(timeout=REST)
        except Empty:
            connections.close_all()
            return self._questions.get()


class Aside:
    """Ask in one thread after the other: one that has not answered in time is left to itself."""

    def __init__(self) -> None:
        self._hand: _Hand | None = None
        self._hanging: list[_Hand] = []

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Let `ask` go aside meanwhile, in this thread."""
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)

    def ask(self, what: str, call: Callable[[], Any]) -> Any:
        """Return or raise what a call comes to; raises `TimeoutError` if that takes too long."""
        self._hanging = [hand for hand in self._hanging if hand.thread.is_alive()]
        if len(self._hanging) >= MOST:
            raise TimeoutError(f"{what} is not asked, since {MOST} like it have not answered yet")
        if self._hand is None or not self._hand.thread.is_alive():
            self._hand = _Hand()
        question = _Question(call)
        self._hand.put(question)
        if not question.done.wait(LIMIT):
            self._hand.put(None)
            self._hanging.append(self._hand)
            self._hand = None
            raise TimeoutError(f"{what} has not answered within {LIMIT:g} s")
        if question.error is not None:
            raise question.error
        return question.value


_current: ContextVar[Aside | None] = ContextVar("aside", default=None)


def ask(what: str, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Call a function of users: aside, where a worker asks, and here otherwise."""
    aside = _current.get()
    if aside is None:
        return func(*args, **kwargs)
    return aside.ask(what, lambda: func(*args, **kwargs))
