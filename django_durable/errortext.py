"""Exceptions as texts that can always be stored and shown."""

from __future__ import annotations

import re
import traceback as tracebacks
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

MAX_CLASS = 255
MAX_MESSAGE = 10_000
MAX_TRACEBACK = 50_000
# What one traceback shows of long chains, wide or nested groups and deep stacks.
MAX_CHAIN = 20
MAX_MEMBERS = 10
MAX_GROUP_DEPTH = 3
MAX_FRAMES = 400

_BAD = re.compile("[\x00\ud800-\udfff]")
_KEPT = "durable_text"
_DATABASE = {"django.db.utils.Error", "psycopg.Error"}
_OWN_FOLDER = str(Path(__file__).parent) + "/"
_CAUSE = "The above exception was the direct cause of the following exception:"
_CONTEXT = "During handling of the above exception, another exception occurred:"


@dataclass(frozen=True, slots=True)
class ErrorText:
    """Hold an error as three texts that PostgreSQL stores: no NUL, no surrogates, not too long.

    `error_class` is `module.QualName`, without the module for Python's and the package's own.
    """

    error_class: str
    message: str
    traceback: str = ""

    @classmethod
    def of(cls, error_class: str, message: str, traceback: str = "") -> ErrorText:
        """Return the error with these texts made storable."""
        return cls(
            storable(error_class[:MAX_CLASS], MAX_CLASS),
            storable(message, MAX_MESSAGE),
            storable(traceback, MAX_TRACEBACK, tail=MAX_TRACEBACK // 2),
        )

    @classmethod
    def from_exception(cls, error: BaseException) -> ErrorText:
        """Return the texts of the exception and its causes; never fail, whatever it does."""
        return cls._of_exception(error, for_log=False)

    @classmethod
    def told_of(cls, error: BaseException) -> ErrorText:
        """Return the texts that a log may show; never fail.

        The traceback has all frames, and of what a database says the first line: arguments are
        below that. Texts that were kept are returned as they are.
        """
        try:
            # Whatever users' classes make of attributes.
            kept = object.__getattribute__(error, _KEPT)
        except Exception:  # noqa: BLE001 - users' code
            kept = None
        if isinstance(kept, cls):
            return kept
        return cls._of_exception(error, for_log=True)

    @classmethod
    def _of_exception(cls, error: BaseException, *, for_log: bool) -> ErrorText:
        try:
            traceback = "".join(_report(error, 0, for_log=for_log))
        except BaseException as problem:  # noqa: BLE001 - the error itself must get through
            traceback = f"[the traceback can't be shown: {type(problem).__name__}]"
        return cls.of(class_path(type(error)), _message(error, for_log=for_log), traceback)

    def keep(self, error: BaseException) -> None:
        """Be what is told of the error from now on: to ask it may take time."""
        with suppress(Exception):
            BaseException.__setattr__(error, _KEPT, self)


def storable(text: str, limit: int, tail: int = 0) -> str:
    """Return the text with U+FFFD for what PostgreSQL can't store, cut to `limit` characters.

    What is cut out is replaced by a note; `tail` of the characters kept are the text's last ones.
    """
    if len(text) > limit:
        note = f"\n[... {len(text) - limit:,} of {len(text):,} characters left out ...]\n"
        head = limit - tail - len(note)
        text = text[:head] + note + (text[-tail:] if tail else "")
    return _BAD.sub("\ufffd", text)


def class_path(kind: type) -> str:
    """Return `module.QualName`, or the name alone for the builtins' and the package's own."""
    try:
        module, name = str(kind.__module__), str(kind.__qualname__)
    except Exception:  # noqa: BLE001 - a metaclass may do anything
        return "[a class without a name]"
    own = module in {"builtins", "django_durable.exceptions"}
    return name if own else f"{module}.{name}"


def _message(error: BaseException, *, for_log: bool) -> str:
    try:
        text = str.__str__(str(error))
    except BaseException as problem:  # noqa: BLE001 - users' code, which may raise anything
        return f"[no message: its __str__ raised {type(problem).__name__}]"
    if for_log and any(class_path(kind) in _DATABASE for kind in type(error).__mro__):
        return text.split("\n")[0]
    return text


def _report(error: BaseException, depth: int, *, for_log: bool) -> Iterator[str]:
    """Yield what Python prints of an exception, within bounds and with no call but str().

    `traceback.TracebackException` walks a chain of any length and looks into frames for its
    suggestions of names, so only its parts for stacks are used.
    """
    chain, shortened = _chain(error)
    if shortened:
        yield "[earlier exceptions of the chain are left out]\n\n"
    for link, then in reversed(chain):
        if link.__traceback__ is not None:
            yield "Traceback (most recent call last):\n"
            yield from _stack(link.__traceback__, for_log=for_log)
        message = storable(_message(link, for_log=for_log), MAX_MESSAGE)
        yield f"{class_path(type(link))}: {message}".removesuffix(": ") + "\n"
        yield from (f"{note}\n" for note in _notes(link))
        if isinstance(link, BaseExceptionGroup):
            yield from _members(link, depth + 1, for_log=for_log)
        if then:
            yield f"\n{then}\n\n"


def _chain(error: BaseException) -> tuple[list[tuple[BaseException, str]], bool]:
    """Return the exception and what led to it, each with the sentence that links it onwards."""
    chain: list[tuple[BaseException, str]] = []
    seen: set[int] = set()
    earlier: BaseException | None = error
    then = ""
    while earlier is not None and id(earlier) not in seen:
        if len(chain) == MAX_CHAIN:
            return chain, True
        seen.add(id(earlier))
        chain.append((earlier, then))
        if earlier.__cause__ is not None:
            earlier, then = earlier.__cause__, _CAUSE
        else:
            hidden = earlier.__suppress_context__
            earlier, then = None if hidden else earlier.__context__, _CONTEXT
    return chain, False


def _stack(traceback: TracebackType, *, for_log: bool) -> Iterator[str]:
    """Yield the frames: for a log all, else from the first that is not the package's own."""
    frames = list(tracebacks.walk_tb(traceback))
    if not for_log:
        own = (frame.f_code.co_filename.startswith(_OWN_FOLDER) for frame, _ in frames)
        first = next((place for place, is_own in enumerate(own) if not is_own), 0)
        frames = frames[first:]
    if len(frames) <= MAX_FRAMES:
        parts = [frames]
    else:
        parts = [frames[: MAX_FRAMES // 2], frames[-MAX_FRAMES // 2 :]]
    for number, part in enumerate(parts):
        if number:
            yield f"  [... {len(frames) - MAX_FRAMES:,} frames left out ...]\n"
        yield from tracebacks.StackSummary.extract(iter(part)).format()


def _notes(error: BaseException) -> list[str]:
    notes = getattr(error, "__notes__", ())
    return [note for note in notes if isinstance(note, str)] if isinstance(notes, list) else []


def _members(
    group: BaseExceptionGroup[BaseException], depth: int, *, for_log: bool
) -> Iterator[str]:
    members = group.exceptions
    if depth > MAX_GROUP_DEPTH:
        yield f"  [{len(members)} exceptions, nested too deep to show]\n"
        return
    for number, member in enumerate(members[:MAX_MEMBERS], start=1):
        yield f"  +- {number} of {len(members)}\n"
        text = "".join(_report(member, depth, for_log=for_log))
        yield "".join(f"  | {line}\n" for line in text.splitlines())
    if len(members) > MAX_MEMBERS:
        yield f"  +- {len(members) - MAX_MEMBERS} more left out\n"
