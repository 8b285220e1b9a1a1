"""Errors that were recorded, raised again as what they were."""

from __future__ import annotations

import builtins
from importlib import import_module

from django_durable import exceptions
from django_durable.exceptions import PermanentFailure


def revive(error_class: str, message: str) -> Exception:
    """Return an exception of the recorded class with the recorded message, which is permanent.

    Its own constructor is not called, so that nothing but the class is taken from the record; a
    class that can't be found, or is no exception, becomes `PermanentFailure`.
    """
    kind = _find(error_class)
    if kind is None:
        error: Exception = PermanentFailure(f"{error_class}: {message}")
    elif kind.__module__ == exceptions.__name__:
        error = kind(message)
    else:
        error = kind.__new__(kind)
        error.args = (message,)
        if hasattr(kind, "message"):
            error.message = message  # type: ignore[attr-defined]
    error.retryable = False  # type: ignore[attr-defined]
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
