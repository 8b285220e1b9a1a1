"""What belongs to a job and has a section of its own on its page."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest

from django_durable import inspection
from django_durable.admin import display
from django_durable.admin.attempts import error_texts
from django_durable.admin.base import ReadOnlyAdmin
from django_durable.admin.payload_text import payload_text
from django_durable.models import Attempt, DeadLetter, Job, Step
from django_durable.querysets import ClockNow

# How many rows of each kind the page has, and how many characters of their texts.
MAX_ATTEMPTS = 20
MAX_CHILDREN = 50
MAX_STEPS = 100
MAX_SIGNALS = 50
MAX_MOMENTS = 200
MAX_VALUE = 500
MAX_MESSAGE = 2000
MAX_TRACEBACK = 8000

ERROR_TEXTS = ("message", "traceback")


def related(model_admin: ReadOnlyAdmin, request: HttpRequest, job: Job) -> dict[str, Any]:
    """Return the context of the sections, each with so many rows at the most."""
    site = model_admin.admin_site
    seen = display.may_see_payload(request)
    return {
        "may_see_payload": seen,
        "hidden": display.HIDDEN,
        "dead_letter": _dead_letter(site, job, seen),
        **_attempts(site, job, seen),
        **_steps(site, job, seen),
        **_signals(job, seen),
        **_children(site, job),
        **_timeline(job, seen),
    }


def _dead_letter(site: Any, job: Job, seen: bool) -> dict[str, Any] | None:
    letter: DeadLetter | None = job.dead_letter
    if letter is None:
        return None
    return {
        "letter": letter,
        "message": display.shortened(letter.message, MAX_MESSAGE)[0] if seen else "",
        "link": display.link(site, DeadLetter, letter.pk, letter),
        "died": display.time(letter.died_at),
        "replayed": display.time(letter.replayed_at),
    }


def _attempts(site: Any, job: Job, seen: bool) -> dict[str, Any]:
    found = Attempt.objects.filter(job=job).order_by("-number")
    if not seen:
        found = found.defer(*ERROR_TEXTS)
    attempts = list(found[: MAX_ATTEMPTS + 1])
    shown: list[dict[str, Any]] = (
        error_texts(attempts[:MAX_ATTEMPTS], message=MAX_MESSAGE, traceback=MAX_TRACEBACK)
        if seen
        else [{"attempt": attempt} for attempt in attempts[:MAX_ATTEMPTS]]
    )
    for row in shown:
        attempt = row["attempt"]
        row["link"] = display.link(site, Attempt, attempt.pk, attempt.number)
        row["started"] = display.time(attempt.started_at)
        row["finished"] = display.time(attempt.finished_at)
    return {
        "attempts": shown,
        "more_attempts": _list_url(site, Attempt, job=job.pk)
        if len(attempts) > MAX_ATTEMPTS
        else "",
    }


def _steps(site: Any, job: Job, seen: bool) -> dict[str, Any]:
    found = job.steps.order_by("ordinal", "pk").defer("undo_name", "undo_call")
    if not seen:
        found = found.defer("undo_name", "undo_call", "value", "message")
    steps = list(found[: MAX_STEPS + 1])
    shown = [
        {
            "step": step,
            "started": display.time(step.started_at),
            "finished": display.time(step.finished_at),
            "wakes": display.time(step.wake_at),
            "child": display.link(site, Job, step.child_id) if step.child_id else "",
            "value": _step_text(step) if seen else "",
        }
        for step in steps[:MAX_STEPS]
    ]
    return {"steps": shown, "more_steps": MAX_STEPS if len(steps) > MAX_STEPS else 0}


def _step_text(step: Step) -> str:
    if step.status == Step.Status.FAILED:
        return _short(f"{step.error_class}: {step.message}")
    if step.status == Step.Status.PENDING or step.kind == Step.Kind.CHILD:
        # The value of a child is that of its job, which has a column.
        return ""
    return _value(step.value)


def _value(value: Any) -> str:
    text, cut = payload_text(value, MAX_VALUE)
    return f"{text}…" if cut else text


def _short(text: str) -> str:
    shown, cut = display.shortened(text, MAX_VALUE)
    return f"{shown}…" if cut else shown


def _signals(job: Job, seen: bool) -> dict[str, Any]:
    found = job.signals.order_by("received_at", "pk")
    if not seen:
        found = found.defer("payload")
    signals = list(found[: MAX_SIGNALS + 1])
    shown = [
        {
            "signal": signal,
            "received": display.time(signal.received_at),
            "payload": _value(signal.payload) if seen else "",
        }
        for signal in signals[:MAX_SIGNALS]
    ]
    return {"signals": shown, "more_signals": MAX_SIGNALS if len(signals) > MAX_SIGNALS else 0}


def _children(site: Any, job: Job) -> dict[str, Any]:
    found = Job.objects.filter(parent=job.pk).order_by("pk").annotate(now=ClockNow())
    columns = ("name", "status", "attempt", "due_at", "cancel_requested_at", "finished_at")
    children = list(found.only(*columns)[: MAX_CHILDREN + 1])
    shown = [
        {
            "child": child,
            "link": display.link(site, Job, child.pk),
            "status": display.status(child, child.now),
            "finished": display.time(child.finished_at),
        }
        for child in children[:MAX_CHILDREN]
    ]
    more = len(children) > MAX_CHILDREN
    return {
        "children": shown,
        "more_children": _list_url(site, Job, parent=job.pk) if more else "",
    }


def _timeline(job: Job, seen: bool) -> dict[str, Any]:
    moments = inspection.timeline(job, MAX_ATTEMPTS, messages=seen)
    shown = [
        {"at": display.time(moment.at), "text": _short(moment.text)}
        for moment in moments[-MAX_MOMENTS:]
    ]
    return {"timeline": shown, "more_moments": MAX_MOMENTS if len(moments) > MAX_MOMENTS else 0}


def _list_url(site: Any, model: Any, **filters: object) -> str:
    return display.list_url(site, model, **filters) if site.is_registered(model) else ""
