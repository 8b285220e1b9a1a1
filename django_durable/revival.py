"""Errors that were recorded, raised again as what they were."""

from __future__ import annotations

import builtins
import re
from contextlib import suppress
from importlib import import_module
from inspect import getattr_static

from django_durable import exceptions
from django_durable.exceptions import PermanentFailure

_COUNT = re.compile(r" \(\d+ sub-exceptions?\)\Z")


def revive(error_class: str, message: str) -> Exception:
    """Return an exception of the recorded class with the recorded message, which is permanent.

    Its own constructor is not called, so that nothing but the class is taken from the record; a
    class that can't be found, or is no exception, becomes `PermanentFailure`. The members of a
    group are not recorded: it has one, a `PermanentFailure` with the recorded message.
    """
    kind = _find(error_class)
    if kind is None:
        error: Exception = PermanentFailure(f"{error_class}: {message}")
    else:
        try:
            error = _made(kind, message)
        except Exception:  # noqa: BLE001 - a class of users' code may ask for anything
            return PermanentFailure(f"{error_class}: {message}")
        if not isinstance(error, ExceptionGroup) and not _says(error, message):
            # It would make its text anew, from what is not recorded.
            with suppress(Exception):
                error = _made(_like(kind, __str__=lambda _: message), message)
    vars(error)["retryable"] = False
    return error


def _says(error: Exception, message: str) -> bool:
    try:
        return str(error) == message
    except Exception:  # noqa: BLE001 - it may lack all that its constructor sets
        return False


def _like(kind: type[Exception], **own: object) -> type[Exception]:
    """Return a class that passes for `kind`, with attributes of its own."""
    named = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    return type(kind.__name__, (kind,), {**named, **own})


def _made(kind: type[Exception], message: str) -> Exception:
    if kind.__module__ == exceptions.__name__:
        return kind(message)
    if hasattr(getattr_static(kind, "retryable", None), "__get__"):
        # It would decide anew, from what is not recorded. The rest is the class itself.
        kind = _like(kind, retryable=False)
    if issubclass(kind, ExceptionGroup):
        # Its text is its message with the number of its members, which it counts itself.
        own = _COUNT.sub("", message)
        return ExceptionGroup.__new__(kind, own, [PermanentFailure(message)])
    error = kind.__new__(kind)
    error.args = (message,)
    vars(error)["message"] = message
    return error


def _find(path: str) -> type[Exception] | None:
    names = path.split(".")
    found: object = None
    if len(names) == 1:
        found = getattr(exceptions, path, None) or getattr(builtins, path, None)
    for split in range(len(names) - 1, 0, -1):
        try:
            found = import_module(".".join(names[:split]))
        except ImportError:
            continue
        for name in names[split:]:
            found = getattr(found, name, None)
        break
    return found if isinstance(found, type) and issubclass(found, Exception) else None
