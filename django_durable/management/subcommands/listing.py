"""The subcommands that list: status, jobs and workers."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.core.management.base import CommandParser

from django_durable import inspection, operations
from django_durable.durations import format_duration
from django_durable.management.subcommands.base import Report, Subcommand
from django_durable.management.subcommands.filters import add_filters, filtered
from django_durable.management.subcommands.output import Page, moment, shortened
from django_durable.models import Job

DEFAULT_LIMIT = 100


class Status(Subcommand):
    """Show how much there is of all."""

    name = "status"
    help = "Count jobs by status and queue, and show workers and their slots."

    def run(self, options: dict[str, Any]) -> Report:
        """Count."""
        found = inspection.summary()
        queues = [
            {
                "name": queue.name,
                "ready": queue.ready,
                "due": queue.due,
                "running": queue.running,
                "oldest_ready_seconds": queue.oldest_ready_seconds,
                "paused": queue.paused,
                "max_running": queue.max_running,
                "rate_limit": queue.rate_limit,
            }
            for queue in found.queues
        ]
        return Report(
            {
                "jobs": dict(found.jobs),
                "queues": queues,
                "workers": [_worker(state) for state in found.workers],
                "slots": {"used": found.slots_used, "total": found.slots_total},
            }
        )

    def show(self, document: Any, page: Page) -> None:
        """Write three tables."""
        slots = document["slots"]
        page.table(["STATUS", "JOBS"], list(document["jobs"].items()))
        page.title("Queues")
        page.table(
            ["QUEUE", "READY", "DUE", "RUNNING", "OLDEST DUE", "STATE", "LIMITS"],
            [
                (
                    queue["name"],
                    queue["ready"],
                    queue["due"],
                    queue["running"],
                    _age(queue["oldest_ready_seconds"]),
                    "paused" if queue["paused"] else "",
                    limits_text(queue),
                )
                for queue in document["queues"]
            ],
        )
        page.title(f"Workers, {slots['used']} of {slots['total']} slots used")
        _show_workers(document["workers"], page)


def limits_text(queue: dict[str, Any]) -> str:
    """Return the limits of a queue for people."""
    most, rate = queue["max_running"], queue["rate_limit"]
    return ", ".join(text for text in (f"{most} at once" if most is not None else "", rate) if text)


def _age(seconds: float | None) -> str:
    return "-" if seconds is None else format_duration(timedelta(seconds=seconds))


class Workers(Subcommand):
    """Show the workers, or ask some to stop."""

    name = "workers"
    _asked = False
    help = "List the workers, the living first; or ask some of them to stop."

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare whom to ask."""
        parser.add_argument(
            "--drain",
            action="append",
            metavar="NAME",
            default=[],
            help="ask the living workers of this name (or incarnation) to finish what they run and"
            " end, and list these (may be repeated)",
        )

    def run(self, options: dict[str, Any]) -> Report:
        """Read them; or ask, and read those that were asked."""
        names: list[str] = options["drain"]
        self._asked = bool(names)
        if not names:
            return Report([_worker(state) for state in inspection.worker_states()])
        meant = [state.worker for state in inspection.worker_states() if state.alive]
        meant = [each for each in meant if {each.name, str(each.pk)} & set(names)]
        operations.drain_workers([worker.pk for worker in meant])
        answer = {text for worker in meant for text in (worker.name, str(worker.pk))}
        asked = {worker.pk for worker in meant}
        return Report(
            [_worker(state) for state in inspection.worker_states() if state.worker.pk in asked],
            problems=[f"no living worker is called {n!r}" for n in names if n not in answer],
        )

    def show(self, document: Any, page: Page) -> None:
        """Write a table."""
        if document or not self._asked:
            _show_workers(document, page)


def _worker(state: inspection.WorkerState) -> dict[str, Any]:
    worker = state.worker
    return {
        "name": worker.name,
        "incarnation": worker.incarnation,
        "hostname": worker.hostname,
        "pid": worker.pid,
        "started_at": worker.started_at,
        "heartbeat_at": worker.heartbeat_at,
        "queues": worker.queues,
        "excluded_queues": worker.excluded_queues,
        "job_names": worker.job_names,
        "capabilities": worker.capabilities,
        "slots": worker.slots,
        "running": state.running,
        "draining": worker.draining,
        "alive": state.alive,
        "state": state.state,
    }


def _show_workers(workers: list[dict[str, Any]], page: Page) -> None:
    if not workers:
        page.line("No worker runs: start one with `manage.py worker`.")
        return
    page.table(
        ["WORKER", "STATE", "RUNNING", "SLOTS", "QUEUES", "HOST", "PROCESS", "HEARTBEAT"],
        [
            (
                worker["name"],
                worker["state"],
                worker["running"],
                worker["slots"],
                _queues(worker),
                worker["hostname"],
                worker["pid"],
                moment(worker["heartbeat_at"]),
            )
            for worker in workers
        ],
    )


def _queues(worker: dict[str, Any]) -> str:
    named = ", ".join(worker["queues"]) or "all"
    excluded = ", ".join(worker["excluded_queues"])
    return f"{named} but {excluded}" if excluded else named


class Jobs(Subcommand):
    """List jobs."""

    name = "jobs"
    help = "List jobs, the newest first."

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the filters."""
        add_filters(parser, limit=DEFAULT_LIMIT)

    def run(self, options: dict[str, Any]) -> Report:
        """Read one page of jobs, in a fixed number of queries."""
        limit: int = options["limit"]
        jobs = inspection.with_errors(filtered(Job.objects.all(), options))
        page = list(jobs.defer("args", "kwargs", "return_value").order_by("-pk")[: limit + 1])
        notes = []
        if len(page) > limit:
            page.pop()
            notes.append(
                f"There are more than these {limit}: --limit or another filter shows them."
            )
        blocked = inspection.blocked_on_many(page)
        return Report([job_row(job, blocked[job.pk]) for job in page], notes=notes)

    def show(self, document: Any, page: Page) -> None:
        """Write a table."""
        if not document:
            page.line("No such job.")
            return
        page.table(
            ["ID", "JOB TYPE", "QUEUE", "STATUS", "ATTEMPT", "ENQUEUED", ""],
            [
                (
                    job["id"],
                    job["name"],
                    job["queue_name"],
                    job["status"],
                    job["attempt"],
                    moment(job["enqueued_at"]),
                    shortened(job["blocked_on"] or error_text(job), 100),
                )
                for job in document
            ],
        )


def job_row(job: Any, blocked_on: str) -> dict[str, Any]:
    """Return what every list of jobs tells of one; `job` comes from `with_errors`."""
    return {
        "id": job.pk,
        "name": job.name,
        "queue_name": job.queue_name,
        "status": job.status,
        "attempt": job.attempt,
        "enqueued_at": job.enqueued_at,
        "run_after": job.run_after,
        "finished_at": job.finished_at,
        "blocked_on": blocked_on,
        "error_class": job.last_error_class,
        "message": job.last_message,
    }


def error_text(row: dict[str, Any]) -> str:
    """Return the error of a row in one text."""
    return ": ".join(part for part in (row["error_class"], row["message"]) if part)
