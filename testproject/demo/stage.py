"""What the story needs: tables, a user for the admin, the web server and the workers."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.db import OperationalError, connection
from django.db.migrations.executor import MigrationExecutor

from django_durable.models import Job, Queue, Worker
from testproject.demo import DemoError
from testproject.demo.interrupts import Interrupts
from testproject.demo.orders import RUN_PREFIX, Plan
from testproject.demo.processes import Program
from testproject.shop.jobs import charge_payment
from testproject.shop.models import TestCard

ADMIN = "demo-admin"
SLOTS = 10
PAYMENTS = charge_payment.options.queue_name
START_SECONDS = 60
POLL_SECONDS = 0.1

T = TypeVar("T")


def server_version() -> str:
    """Return the version of PostgreSQL; raise `DemoError` if the database is none or is away."""
    if connection.vendor != "postgresql":
        raise DemoError(f"DATABASE_URL names {connection.display_name}: it has to be PostgreSQL.")
    try:
        return str(_value("SHOW server_version")).split()[0]
    except OperationalError as error:
        raise DemoError(f"The database does not answer: {error}") from error


def database_time() -> datetime:
    """Return the time by the database's clock."""
    now: datetime = _value("SELECT clock_timestamp()")
    return now


def _value(statement: str) -> Any:
    with connection.cursor() as cursor:
        cursor.execute(statement)
        return cursor.fetchone()[0]


def migrate() -> int:
    """Bring the tables up to date and return how many migrations that took."""
    executor = MigrationExecutor(connection)
    plan: list[Any] = executor.migration_plan(executor.loader.graph.leaf_nodes())
    call_command("migrate", verbosity=0, interactive=False)
    return len(plan)


def create_admin() -> str:
    """Make the user for the admin, or give it a new password; return the password."""
    password = secrets.token_urlsafe(12)
    users = get_user_model().objects
    user = users.filter(username=ADMIN).first() or users.create_user(ADMIN)
    user.is_staff = user.is_superuser = user.is_active = True
    user.set_password(password)
    user.save()
    return password


def deal_cards(plan: Plan) -> None:
    """Tell the gateway whose card to refuse and when to fail, and nothing of earlier runs."""
    TestCard.objects.all().delete()
    if plan.refused_customer is not None:
        TestCard.objects.create(customer=plan.refused_customer, refused=True)
    TestCard.objects.create(customer=plan.failing_customer, failures=2)


def keep_slots_free() -> None:
    """Let charges take most of a worker's slots and not all: other work goes on when they hang."""
    Queue.objects.update_or_create(name=PAYMENTS, defaults={"max_running": SLOTS - 2})


def unfinished_leftovers() -> int:
    """Count the jobs that earlier runs, ended in the middle, left to do."""
    left: int = (
        Job.objects.filter(finished_at=None)
        .filter(name__startswith="testproject.shop.", idempotency_key__startswith=RUN_PREFIX)
        .count()
    )
    return left


def start_web(folder: Path) -> Program:
    """Start the web server on a free port of 127.0.0.1."""
    # Static files without DEBUG, which would keep every query in memory.
    arguments = ["runserver", "127.0.0.1:0", "--noreload", "--insecure"]
    return Program("web server", arguments, folder / "web.log")


def web_url(web: Program, interrupts: Interrupts) -> str:
    """Wait until the web server listens and return its address."""

    def address() -> str | None:
        found = re.search(r"http://127\.0\.0\.1:\d+/", web.log.read_text(errors="replace"))
        return found[0] if found else None

    return _wait(address, web, interrupts)


def start_worker(name: str, lease: float, log: Path) -> Program:
    """Start a worker of this name, whose jobs are free so many seconds after it is killed."""
    flags = ["--name", name, "--lease", f"{lease:g}", "--concurrency", str(SLOTS), "--no-reload"]
    return Program("worker", ["worker", *flags], log)


def worker_ready(worker: Program, name: str, interrupts: Interrupts) -> None:
    """Wait until the worker has reported."""
    _wait(Worker.objects.filter(name=name).exists, worker, interrupts)


def _wait(look: Callable[[], T | None], program: Program, interrupts: Interrupts) -> T:
    for _ in range(int(START_SECONDS / POLL_SECONDS)):
        if found := look():
            return found
        program.check()
        interrupts.pause(POLL_SECONDS)
    raise DemoError(f"The {program.title} did not start.{program.log_tail()}")
