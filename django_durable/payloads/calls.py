"""The call of a job type: bound to the function's signature, then written down."""

from __future__ import annotations

import inspect
import math
import sys
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from django_durable.exceptions import PayloadError
from django_durable.payloads.writing import (
    Refused,
    Writer,
    bytes_of,
    encode,
    flat_dict,
    flat_list,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class _Shape(NamedTuple):
    """Keep of a function what tells a right call from a wrong one.

    From `least` to `most` positional arguments alone are a right call.
    """

    signature: inspect.Signature
    names: tuple[str, ...]
    least: float
    most: float


@lru_cache(maxsize=4096)
def _shape(func: Callable[..., Any]) -> _Shape:
    signature = _signature(func)
    parameters = signature.parameters.values()
    positional = [each for each in parameters if each.kind in _POSITIONAL]
    others = [each for each in parameters if each.kind not in _POSITIONAL]
    needs_keyword = any(
        each.kind is each.KEYWORD_ONLY and each.default is each.empty for each in others
    )
    required = sum(each.default is each.empty for each in positional)
    takes_any = any(each.kind is each.VAR_POSITIONAL for each in others)
    return _Shape(
        signature,
        tuple(each.name for each in positional),
        math.inf if needs_keyword else required,
        math.inf if takes_any else len(positional),
    )


def _signature(func: Callable[..., Any]) -> inspect.Signature:
    if sys.version_info >= (3, 14):
        from annotationlib import Format

        # Annotations are evaluated here, and may name what is imported for type checkers only.
        return inspect.signature(func, annotation_format=Format.FORWARDREF)
    return inspect.signature(func)


def bind_arguments(
    func: Callable[..., Any],
    args: Sequence[object],
    kwargs: Mapping[str, object],
    *,
    takes_context: bool,
) -> None:
    """Raise TypeError, which names the function, if it can't be called like this.

    With `takes_context` the first parameter is the worker's to fill.
    """
    shape = _shape(func)
    if not kwargs and shape.least <= len(args) + takes_context <= shape.most:
        return
    context = (None,) if takes_context else ()
    try:
        shape.signature.bind(*context, *args, **kwargs)
    except TypeError as error:
        name = getattr(func, "__qualname__", None) or repr(func)
        raise TypeError(f"{name}(): {error}") from None


def argument_names(func: Callable[..., Any], *, takes_context: bool) -> tuple[str, ...]:
    """Return the names of the positional parameters that a caller fills."""
    return _shape(func).names[1 if takes_context else 0 :]


def encode_arguments(
    args: Sequence[object],
    kwargs: Mapping[str, object],
    *,
    names: Sequence[str],
    limit: int | None,
) -> tuple[str, str]:
    """Return the texts of the positional arguments, as a list, and of the others, as a dict.

    Both together count against `limit`. Raise PayloadError as `encode` does, naming the argument;
    `names` are those of the positional parameters.
    """
    args_text, kwargs_text = flat_list(args), flat_dict(kwargs)
    if args_text is not None and kwargs_text is not None:
        # Nearly every call. What is refused is looked at below, where the culprit is found.
        size = bytes_of(args_text) + bytes_of(kwargs_text)
        if limit is None or size <= limit:
            return args_text, kwargs_text
    writer = Writer(limit)
    try:
        args_text = writer.text(list(args)) if args else "[]"
        kwargs_text = writer.text(dict(kwargs)) if kwargs else "{}"
        writer.fit(bytes_of(args_text) + bytes_of(kwargs_text))
    except Refused as refused:
        culprit = refused.parts.pop() if refused.parts else _largest(args, kwargs, limit)
        if isinstance(culprit, int):
            culprit = names[culprit] if culprit < len(names) else culprit + 1
        raise PayloadError(f"argument {culprit!r}{refused.path()} {refused}") from None
    return args_text, kwargs_text


def _largest(args: Sequence[object], kwargs: Mapping[str, object], limit: int | None) -> int | str:
    def size(item: tuple[int | str, object]) -> int:
        try:
            return len(encode(item[1], where="", limit=limit))
        except PayloadError:
            return 0

    named: list[tuple[int | str, object]] = [*enumerate(args), *kwargs.items()]
    return max(named, key=size)[0]
