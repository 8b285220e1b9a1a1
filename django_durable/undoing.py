"""Undo jobs: take the compensable steps of a dead or cancelled job back, in reverse order."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django_durable import store
from django_durable.choices import UNDO, StepKind, StepStatus
from django_durable.exceptions import PermanentFailure, StopRun
from django_durable.fields import Undecodable
from django_durable.step_policy import policy_by_name
from django_durable.steps import StepRun

if TYPE_CHECKING:
    from django_durable.context import JobContext
    from django_durable.models import Step


class CompensationRun(StepRun):
    """Be one compensation: a checkpoint of the undo job, named like the step it takes back.

    Its record is, in the same commit, the note on that step that it is taken back.
    """

    kind = StepKind.COMPENSATION


def undo(context: JobContext) -> int:
    """Do what an undo job does; return how many steps were taken back.

    Each compensation is a checkpoint, so that a crash repeats none that is recorded. One that
    fails for good is recorded and the rest go on; then the undo job fails for good, too.
    """
    from django_durable.models import Step

    original = UUID(context.claim.metadata[UNDO])
    # What an older version has recorded it may have died before it noted.
    context.insist(
        lambda: store.mark_compensated(store.connection(), context.claim.id),
        context.wait_for_database,
    )
    steps = Step.objects.filter(
        job_id=original, undo_name__isnull=False, status=StepStatus.SUCCEEDED, compensated=False
    ).order_by("-ordinal", "-pk")
    earned = context.ask(lambda: list(steps.all()))
    failed = [step.name for step in earned if not _take_back(context, step)]
    if failed:
        raise PermanentFailure(f"could not be taken back: {', '.join(failed)}")
    return len(context.journal.load())


def _take_back(context: JobContext, step: Step) -> bool:
    run = CompensationRun(context, step.name, *_call_of(step))
    try:
        run.run()
    except StopRun:
        raise
    except Exception as error:
        if context.is_retryable(error):
            if not _is_last(context):
                raise
            return run.give_up(error)
        return False
    return True


def _call_of(step: Step) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    """Return the compensation and its arguments; what is wrong with them is the call's to raise.

    So it is recorded of this step, and the others are taken back all the same.
    """
    for stored in (step.value, step.undo_call):
        if isinstance(stored, Undecodable):
            return _raising(PermanentFailure(f"what it did can't be read: {stored.reason}")), (), {}
    try:
        args, kwargs = step.undo_call
        return _compensation(step.undo_name or ""), (step.value, *args), kwargs
    except Exception as error:  # noqa: BLE001 - the call raises it
        return _raising(error), (), {}


def _is_last(context: JobContext) -> bool:
    most = context.claim.max_attempts
    return most is not None and context.attempt >= most


def _compensation(name: str) -> Callable[..., Any]:
    """Return the compensation of the step function of this name, which `@step` has registered."""
    policy = policy_by_name(name)
    parts = name.split(".")
    while policy is None and len(parts) > 1:
        parts.pop()
        try:
            import_module(".".join(parts))
        except (ImportError, ValueError):
            continue
        policy = policy_by_name(name)
        break
    if policy is None or policy.compensate is None:
        raise PermanentFailure(f"the step function {name} has no compensation in this code")
    return policy.compensate


def _raising(error: Exception) -> Callable[..., Any]:
    def failing(*_: Any, **__: Any) -> None:
        raise error

    return failing
