"""Users' code that is asked aside: in a thread of its own, and waited for only so long.

A worker asks it in the middle of what others wait for. What hangs there, on a lock or a host that
is away, must keep nothing but itself.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from queue import SimpleQueue
from typing import Any

from django.db import connections

from django_durable.errortext import ErrorText

# In seconds.
LIMIT = 2.0
# How many questions may be without an answer at once, of one kind and of all; what has answered
# before is asked all the same, up to the last bound, since each may have a connection.
MOST_OF_KIND = 4
MOST = 8
MOST_IN_ALL = 16
MOST_KNOWN = 20_000


class _Question:
    """Be one call, and what it comes to."""

    value: Any = None
    error: Exception | None = None

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self.done = threading.Event()

    def answer(self) -> None:
        try:
            self.value = self._call()
        except BaseException as error:  # noqa: BLE001 - raised where it was asked
            self.error = _as_exception(error)
        _forget_connections()
        self.done.set()


def _as_exception(error: BaseException) -> Exception:
    """Return what can be raised where others' work goes on, with its text, which is users' too."""
    text = ErrorText.told_of(error)
    if not isinstance(error, Exception):
        return RuntimeError(f"{text.error_class}: {text.message}")
    text.keep(error)
    return error


def _forget_connections() -> None:
    """Leave no connection to who asks next, nor what somebody has left open on it."""
    for connection in connections.all(initialized_only=True):
        with suppress(Exception):
            connection.close()
        del connections[connection.alias]


class _Hand:
    """Be one thread that answers questions until it is let go."""

    def __init__(self) -> None:
        self._questions: SimpleQueue[_Question | None] = SimpleQueue()
        self.thread = threading.Thread(target=self._run, name="users' keys", daemon=True)
        self.thread.start()

    def put(self, question: _Question | None) -> None:
        self._questions.put(question)

    def _run(self) -> None:
        while (question := self._questions.get()) is not None:
            question.answer()


class Aside:
    """Ask in one thread after the other: one that has not answered in time is left to itself.

    What has had no answer is not asked again until it has.
    """

    def __init__(self) -> None:
        self._hand: _Hand | None = None
        self._hanging: dict[tuple[str, Hashable], _Hand] = {}
        self._known: dict[tuple[str, Hashable], None] = {}

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Let `ask` go aside meanwhile, in this thread."""
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)

    def ask(self, what: str, which: Hashable, call: Callable[[], Any]) -> Any:
        """Return or raise what a call comes to; raises `TimeoutError` if that takes too long.

        `what` is the kind of question, and `which` tells those of one kind apart.
        """
        hanging = self._hanging.items()
        self._hanging = {key: hand for key, hand in hanging if hand.thread.is_alive()}
        if (what, which) in self._hanging:
            raise TimeoutError(f"{what} has not answered yet")
        alike = sum(kind == what for kind, _which in self._hanging)
        is_new = (what, which) not in self._known
        if (is_new and (alike >= MOST_OF_KIND or len(self._hanging) >= MOST)) or (
            len(self._hanging) >= MOST_IN_ALL
        ):
            raise TimeoutError(
                f"{what} is not asked, since {len(self._hanging)} others have not answered yet"
            )
        if self._hand is None or not self._hand.thread.is_alive():
            self._hand = _Hand()
        question = _Question(call)
        self._hand.put(question)
        if not question.done.wait(LIMIT):
            self._hand.put(None)
            self._hanging[what, which] = self._hand
            self._known.pop((what, which), None)
            self._hand = None
            raise TimeoutError(f"{what} has not answered within {LIMIT:g} s")
        self._known[what, which] = None
        if len(self._known) > MOST_KNOWN:
            del self._known[next(iter(self._known))]
        if question.error is not None:
            raise question.error
        return question.value


_current: ContextVar[Aside | None] = ContextVar("aside", default=None)


def ask(what: str, which: Hashable, call: Callable[[], Any]) -> Any:
    """Call users' code: aside, where a worker asks, and here otherwise."""
    aside = _current.get()
    return call() if aside is None else aside.ask(what, which, call)
