"""What `@step` says of a function, and whether a step is under way. No database, no models."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

from django_durable.backoff import Backoff
from django_durable.exceptions import DurableError

F = TypeVar("F", bound=Callable[..., Any])

# True in what a step calls: there a verb of the context would be a checkpoint in a checkpoint.
_in_step: ContextVar[bool] = ContextVar("durable_in_step", default=False)
_ATTRIBUTE = "durable_step"


@dataclass(frozen=True)
class StepPolicy:
    """Hold what `@step` says of a function."""

    name: str
    backoff: Backoff
    max_attempts: int | None
    timeout: timedelta | None
    compensate: Callable[..., Any] | None


NO_POLICY = StepPolicy("", Backoff(), None, None, None)
_by_name: dict[str, StepPolicy] = {}


def step(
    func: F | None = None,
    *,
    backoff: Backoff | None = None,
    max_attempts: int | None = None,
    timeout: timedelta | None = None,
    compensate: Callable[..., Any] | None = None,
) -> Any:
    """Give a function a policy that holds wherever `context.step` calls it.

    `max_attempts` is the number of tries before its error is permanent (without it, an error is
    the attempt's), `backoff` the wait between them, `timeout` how long one may take, and
    `compensate(value, *args, **kwargs)` takes it back when the job dies or is cancelled. Calling
    the function yourself stays a plain call. Raises `ValueError` for a value out of range.
    """
    if max_attempts is not None and max_attempts < 1:
        raise ValueError(f"max_attempts must be a whole number from 1 on, not {max_attempts!r}")
    if timeout is not None and timeout <= timedelta(0):
        raise ValueError(f"timeout must be a timedelta longer than nothing, not {timeout!r}")
    if compensate is not None and not callable(compensate):
        raise ValueError(f"compensate must be callable, not {compensate!r}")

    def decorate(function: F) -> F:
        name = f"{function.__module__}.{function.__qualname__}"
        policy = StepPolicy(name, backoff or Backoff(), max_attempts, timeout, compensate)
        setattr(function, _ATTRIBUTE, policy)
        _by_name[name] = policy
        return function

    return decorate(func) if func is not None else decorate


def policy_of(func: Callable[..., Any]) -> StepPolicy:
    """Return the policy of a function."""
    return getattr(func, _ATTRIBUTE, NO_POLICY)


def policy_by_name(name: str) -> StepPolicy | None:
    """Return the policy of the step function of this name, if this process knows it."""
    return _by_name.get(name)


def refuse_in_step() -> None:
    """Raise `DurableError` inside a step."""
    if _in_step.get():
        raise DurableError(
            "a step can't use the verbs of the context: its result is one checkpoint"
        )


@contextmanager
def inside_step() -> Iterator[None]:
    """Mark what runs as the inside of a step."""
    token = _in_step.set(True)
    try:
        yield
    finally:
        _in_step.reset(token)
