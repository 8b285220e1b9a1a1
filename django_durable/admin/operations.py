"""The operations themselves: cancel, run now, replay."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from django.contrib import messages
from django.core.exceptions import ObjectDoesNotExist
from django.http import HttpRequest
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from django_durable import operations
from django_durable.admin.operating import Operation, OperationsAdmin, one_commit, tell_of_new_jobs
from django_durable.choices import JobStatus
from django_durable.exceptions import AlreadyReplayed, DurableError
from django_durable.models import DeadLetter, Job

MAX_REASON = 1000


def _cancel_outlook(job: Job) -> str:
    if job.is_finished:
        return gettext("has ended, stays as it is")
    if job.cancel_requested_at is not None:
        return gettext("was asked to stop already")
    if job.status == JobStatus.RUNNING:
        return gettext("runs, is asked to stop")
    return gettext("is cancelled at once")


def _cancel(admin: OperationsAdmin, request: HttpRequest, jobs: Sequence[Job]) -> None:
    """Cancel the jobs with their trees, in one transaction, which locks them in one order."""
    who = gettext("cancelled by %(user)s") % {"user": request.user.get_username()}
    reason = request.POST.get("reason", "").replace("\x00", "").strip()[:MAX_REASON] or who
    record = {
        "cancelled": gettext("Cancelled: %(reason)s") % {"reason": reason},
        "requested": gettext("Asked to stop: %(reason)s") % {"reason": reason},
    }
    with one_commit():
        changed = operations.cancel_ids([job.pk for job in jobs], reason=reason)
        for job in jobs:
            if job.pk in changed:
                admin.log_change(request, job, record[changed[job.pk]])
    counts = Counter(changed.values())
    if count := counts["cancelled"]:
        text = ngettext("%(count)d job was cancelled.", "%(count)d jobs were cancelled.", count)
        admin.message_user(request, text % {"count": count}, messages.SUCCESS)
    if count := counts["requested"]:
        text = ngettext(
            "%(count)d running job was asked to stop.",
            "%(count)d running jobs were asked to stop.",
            count,
        )
        admin.message_user(request, text % {"count": count}, messages.SUCCESS)
    if count := sum(job.pk not in changed for job in jobs):
        text = ngettext(
            "%(count)d job had ended already.", "%(count)d jobs had ended already.", count
        )
        admin.message_user(request, text % {"count": count}, messages.WARNING)


def _is_delayed(job: Any) -> bool:
    return bool(job.status == JobStatus.READY and job.due_at and job.due_at > job.now)


def _run_now_outlook(job: Job) -> str:
    if _is_delayed(job):
        return gettext("may start at once")
    return gettext("has no delay to end, stays as it is")


def _run_now(admin: OperationsAdmin, request: HttpRequest, jobs: Sequence[Job]) -> None:
    changed = 0
    for job in jobs:
        with one_commit():
            if operations.run_now([job], by=request.user.get_username()[:200]):
                changed += 1
                admin.log_change(request, job, gettext("Made due now"))
    if changed:
        text = ngettext("%(count)d job may start now.", "%(count)d jobs may start now.", changed)
        admin.message_user(request, text % {"count": changed}, messages.SUCCESS)
    if unchanged := len(jobs) - changed:
        text = ngettext(
            "%(count)d job had no delay to end.", "%(count)d jobs had no delay to end.", unchanged
        )
        admin.message_user(request, text % {"count": unchanged}, messages.WARNING)


def _letter(obj: Job | DeadLetter) -> DeadLetter | None:
    return obj if isinstance(obj, DeadLetter) else obj.dead_letter


def _is_replayable(obj: Job | DeadLetter) -> bool:
    letter = _letter(obj)
    return letter is not None and letter.replayed_at is None


def _replay_outlook(obj: Job | DeadLetter) -> str:
    letter = _letter(obj)
    if letter is None:
        return gettext("is not dead, left out")
    if letter.replayed_at is not None:
        return gettext("was replayed already, left out")
    return gettext("a new job is made")


def _replay(
    admin: OperationsAdmin, request: HttpRequest, objects: Sequence[Job | DeadLetter]
) -> None:
    """Replay the dead letters, each in a transaction of its own."""
    made: list[Job] = []
    again = without = 0
    for obj in objects:
        try:
            made.append(_replay_one(admin, request, obj))
        except AlreadyReplayed:
            again += 1
        except ObjectDoesNotExist:
            without += 1
        except DurableError as error:
            admin.message_user(request, f"{obj}: {error}", messages.ERROR)
    if made:
        tell_of_new_jobs(admin, request, made, gettext("Replayed as the new job {}."))
    if again:
        text = ngettext(
            "%(count)d dead letter had been replayed already: no second job was made.",
            "%(count)d dead letters had been replayed already: no second jobs were made.",
            again,
        )
        admin.message_user(request, text % {"count": again}, messages.WARNING)
    if without:
        text = ngettext(
            "%(count)d was left out: only dead jobs are replayed.",
            "%(count)d were left out: only dead jobs are replayed.",
            without,
        )
        admin.message_user(request, text % {"count": without}, messages.WARNING)


def _replay_one(admin: OperationsAdmin, request: HttpRequest, obj: Job | DeadLetter) -> Job:
    letter = _letter(obj)
    if letter is None:
        raise DeadLetter.DoesNotExist
    with one_commit():
        job = operations.replay(letter, by=request.user.get_username()[:200])
        admin.log_change(request, obj, gettext("Replayed as job %(job)s") % {"job": job.pk})
    return job


CANCEL = Operation(
    action="cancel_selected",
    slug="cancel",
    permission="cancel",
    label=_("Cancel"),
    title=_("Cancel jobs"),
    warning=_(
        "Unfinished descendants are cancelled too. What waits never runs again; what runs is"
        " asked to stop."
    ),
    button=_("Yes, cancel"),
    outlook=_cancel_outlook,
    possible=lambda job: not job.is_finished and job.cancel_requested_at is None,
    perform=_cancel,
    takes_reason=True,
)
RUN_NOW = Operation(
    action="run_now_selected",
    slug="run-now",
    permission="retry",
    label=_("Run now"),
    title=_("Run jobs now"),
    warning=_("The delay or backoff ends: a worker may start the job at once."),
    button=_("Yes, run now"),
    outlook=_run_now_outlook,
    possible=_is_delayed,
    perform=_run_now,
    confirm=False,
)
REPLAY = Operation(
    action="replay_selected",
    slug="replay",
    permission="replay",
    label=_("Replay"),
    title=_("Replay dead jobs"),
    warning=_(
        "Each dead job is made again as a new job with the same arguments, which takes its"
        " idempotency key over. What the dead job did before it failed may happen again."
    ),
    button=_("Yes, replay"),
    outlook=_replay_outlook,
    possible=_is_replayable,
    perform=_replay,
)
