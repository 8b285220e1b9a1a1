"""The log sentences on jobs, most of them receivers of the package's signals, and the format."""

from __future__ import annotations

import json
import logging
import os
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from django_durable import signals
from django_durable.durations import format_duration
from django_durable.errorlog import get_logger

if TYPE_CHECKING:
    from django_durable.models import Job
    from django_durable.outcomes import Rejected
    from django_durable.store import Claim
    from django_durable.worker.options import WorkerOptions

logger = get_logger("django_durable.jobs")


def _extra(job: Job, attempt: int | None = None) -> dict[str, Any]:
    return {
        "job_id": str(job.pk),
        "job_name": job.name,
        "queue_name": job.queue_name,
        "attempt": job.attempt if attempt is None else attempt,
    }


def _started(job: Job, attempt: int, **_: Any) -> None:
    logger.debug("%s %s started, attempt %d", job.name, job.pk, attempt, extra=_extra(job, attempt))


def _succeeded(job: Job, attempt: int, waited: float, took: float, **_: Any) -> None:
    logger.info(
        "%s %s succeeded in %.3f s, attempt %d",
        job.name,
        job.pk,
        took,
        attempt,
        extra=_extra(job, attempt),
    )


def _failed(job: Job, attempt: int, error: Any, will_retry: bool, took: float, **_: Any) -> None:
    then = "no attempt is left"
    if will_retry:
        # By the database's clock alone: this machine's may be another.
        ends = job.attempts.filter(number=attempt).order_by("-finished_at")
        ended_at = ends.values_list("finished_at", flat=True).first()
        delay = timedelta(0) if ended_at is None else job.run_after - ended_at
        soon = delay <= timedelta(0)
        then = "next attempt at once" if soon else f"next attempt in {format_duration(delay)}"
    logger.warning(
        "%s %s failed in attempt %d after %.3f s: %s: %s; %s",
        job.name,
        job.pk,
        attempt,
        took,
        error.error_class,
        error.message.split("\n")[0][:200],
        then,
        extra=_extra(job, attempt),
    )


def _dead(job: Job, dead_letter: Any, **_: Any) -> None:
    logger.error(
        "%s %s is dead (%s): %s: %s",
        job.name,
        job.pk,
        dead_letter.reason,
        dead_letter.error_class,
        dead_letter.message.split("\n")[0][:200],
        extra=_extra(job),
    )


def _cancelled(job: Job, reason: str, **_: Any) -> None:
    logger.info("%s %s was cancelled: %s", job.name, job.pk, reason or "-", extra=_extra(job))


def _lost(job: Job, attempt: int, **_: Any) -> None:
    logger.warning(
        "%s %s: attempt %d lost its claim; nothing of it is stored any more",
        job.name,
        job.pk,
        attempt,
        extra=_extra(job, attempt),
    )


def rejected(claim: Claim, outcome: Rejected) -> None:
    """Say why a job did not run here; that has no signal, and leaves no attempt behind."""
    logger.info(
        "%s %s was rejected: %s; offered again in %s",
        claim.name,
        claim.id,
        outcome.why,
        format_duration(outcome.delay),
        extra={"job_id": str(claim.id), "job_name": claim.name, "queue_name": claim.queue_name},
    )


class _OwnStream(logging.StreamHandler[Any]):
    """Write to what standard error was at first, whatever jobs do to `sys.stderr`; never fail."""

    def __init__(self) -> None:
        super().__init__(os.fdopen(os.dup(2), "w", buffering=1, errors="backslashreplace"))

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the name is given
        """Go on without the line: who logs has more important things to do."""


class JsonFormatter(logging.Formatter):
    """Write each record as one line of JSON, with the name of the worker."""

    FIELDS = ("job_id", "job_name", "queue_name", "attempt")

    def __init__(self, worker: str) -> None:
        super().__init__()
        self._worker = worker

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            "process": record.process,
            "worker": self._worker,
        }
        line.update({name: getattr(record, name) for name in self.FIELDS if hasattr(record, name)})
        if record.exc_info:
            line["traceback"] = record.exc_text or self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=False)


def _formatter(options: WorkerOptions) -> logging.Formatter:
    if options.log_format == "json":
        return JsonFormatter(options.name)
    text = f"%(asctime)s %(levelname)s {options.name.replace('%', '%%')}[%(process)d] %(message)s"
    return logging.Formatter(text, "%H:%M:%S")


def set_up_logging(options: WorkerOptions) -> None:
    """Connect the sentences, and write them to stderr unless the project's logging does it.

    Each line names the worker and the process. Verbosity 0 shows warnings, 1 a line for each run, 2
    and more also starts.
    """
    level = {0: logging.WARNING, 1: logging.INFO}.get(options.verbosity, logging.DEBUG)
    package = logging.getLogger("django_durable")
    package.setLevel(level)
    if not package.handlers:
        handler = _OwnStream()
        handler.setFormatter(_formatter(options))
        package.addHandler(handler)
        package.propagate = False
    if level <= logging.DEBUG:
        signals.job_started.connect(_started)
    if level <= logging.INFO:
        signals.job_succeeded.connect(_succeeded)
        signals.job_cancelled.connect(_cancelled)
    signals.job_failed.connect(_failed)
    signals.job_dead_lettered.connect(_dead)
    signals.lease_lost.connect(_lost)
