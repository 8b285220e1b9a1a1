"""Which facts the page of a job shows, and in which order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.utils.translation import gettext_lazy as _

from django_durable.admin.display import moment
from django_durable.choices import JobStatus
from django_durable.models import Job

_BLOCKED = frozenset({JobStatus.READY, JobStatus.WAITING})

_TIMES = [
    (
        moment("enqueued_at", _("enqueued")),
        moment("run_after", _("run after")),
        moment("due_at", _("due")),
    ),
    (
        moment("started_at", _("started")),
        moment("claimed_at", _("claimed")),
        moment("finished_at", _("finished")),
        moment("kept_until", _("kept until")),
    ),
]


def sections(job: Job | None) -> Iterator[tuple[Any, list[Any]]]:
    """Yield the title and the displays of each section that says something of this job."""
    first: list[Any] = [
        ("id", "name", "queue_name"),
        ("status_words", "attempt_count", "priority"),
    ]
    if job is None or job.status in _BLOCKED:
        first.append("blocked_on")
    if job is None or job.progress:
        first.append("progress_text")
    yield None, first
    yield _("Payload"), ["arguments", "keyword_arguments", "result_text"]
    yield _("Times"), _TIMES
    if job is None or job.worker is not None:
        yield _("Worker"), [("worker_link", moment("lease_until", _("lease until")))]
    if job is None or job.cancel_requested_at is not None:
        requested = moment("cancel_requested_at", _("requested"))
        yield _("Cancellation"), [requested, "cancel_reason_text"]
    yield _("Tree"), [("parent_link", "root_link", "depth")]
    yield _("Replay"), [("replay_of_link", "replayed_as_link", "delivery_key")]
    if job is None or job.forked_from is not None:
        yield _("Fork"), ["forked_from_link"]
    yield (
        _("Options"),
        [
            ("idempotency_key", "concurrency_key"),
            ("max_attempts", "rejections", "requires"),
            "options_text",
            "metadata_text",
        ],
    )
