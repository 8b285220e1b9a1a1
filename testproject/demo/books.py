"""The books: what the tables say of one run, beside what the file of orders says it should be."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from django.db import connection

from testproject.demo.orders import Plan, total
from testproject.demo.story import money

# Every statement takes the run, with which the reference of each of its orders begins.
ORDERS = """
    SELECT count(*), coalesce(sum(amount), 0) FROM shop_order
    WHERE starts_with(reference, %(run)s)
"""
CHARGED_ONCE = """
    SELECT count(*), coalesce(sum(payment.amount), 0)
    FROM shop_order ordered
    JOIN shop_payment payment ON payment.order_id = ordered.id
    JOIN (
        SELECT description, count(*) AS charges, min(id) AS id, sum(amount) AS amount
        FROM shop_gatewaycharge
        WHERE starts_with(description, %(run)s)
        GROUP BY description
    ) charged ON charged.description = ordered.reference
    WHERE starts_with(ordered.reference, %(run)s)
    AND charged.charges = 1 AND charged.id = payment.charge_id
    AND charged.amount = ordered.amount AND payment.amount = ordered.amount
"""
CHARGES = """
    SELECT count(*), coalesce(sum(amount), 0) FROM shop_gatewaycharge
    WHERE starts_with(description, %(run)s)
"""
RECEIPTS = """
    SELECT count(*) FROM shop_receipt receipt
    JOIN shop_order ordered ON ordered.id = receipt.order_id
    JOIN shop_payment payment ON payment.order_id = ordered.id
    WHERE starts_with(ordered.reference, %(run)s)
"""
RECEIPT_JOBS = """
    SELECT id FROM durable_job
    WHERE name = 'testproject.shop.jobs.send_receipt' AND starts_with(idempotency_key, %(run)s)
"""
ENDS = """
    SELECT count(*) FILTER (WHERE status = 'DONE'), count(*) FILTER (WHERE status = 'UNPAID'),
           count(*) FILTER (WHERE status NOT IN ('DONE', 'UNPAID'))
    FROM shop_order WHERE starts_with(reference, %(run)s)
"""
DEAD_LETTERS = """
    SELECT count(*) FROM durable_deadletter
    JOIN durable_job job ON job.id = job_id
    WHERE starts_with(job.idempotency_key, %(run)s)
"""
JOBS = """
    SELECT count(*) FILTER (WHERE finished_at IS NOT NULL),
           count(*) FILTER (WHERE finished_at IS NULL),
           count(*) FILTER (WHERE status = 'RUNNING'),
           count(*) FILTER (WHERE status = 'RUNNING' AND worker = %(killed)s),
           count(*) FILTER (WHERE status = 'READY' AND attempt > 0)
    FROM durable_job WHERE starts_with(idempotency_key, %(run)s)
"""
ROLLED_BACK = """
    SELECT (SELECT count(*) FROM shop_order WHERE reference = %(reference)s)
         + (SELECT count(*) FROM durable_job WHERE idempotency_key = %(reference)s)
"""


def ask(statement: str, plan: Plan, **bound: Any) -> tuple[Any, ...]:
    """Return the one row of a statement about this run."""
    with connection.cursor() as cursor:
        cursor.execute(statement, {"run": f"{plan.run}-", **bound})
        row: tuple[Any, ...] = cursor.fetchone()
        return row


@dataclass(frozen=True)
class JobCounts:
    """Count the jobs of a run; `held` are those that the killed worker seems to be running."""

    finished: int
    unfinished: int
    running: int
    held: int
    retrying: int

    def remark(self) -> str:
        """Say what the unfinished ones are at."""
        waiting = self.unfinished - self.running - self.retrying
        parts = {
            "run": self.running - self.held,
            "wait": waiting,
            "back off": self.retrying,
            "with the dead worker": self.held,
        }
        return ", ".join(f"{number} {what}" for what, number in parts.items() if number)


def count_jobs(plan: Plan, killed: str) -> JobCounts:
    """Count the jobs of this run; `killed` is the name of a worker that was killed."""
    return JobCounts(*ask(JOBS, plan, killed=killed))


def count_open_orders(plan: Plan) -> int:
    """Count the orders of this run that have not come to an end yet."""
    still_open: int = ask(ENDS, plan)[2]
    return still_open


@dataclass(frozen=True)
class Entry:
    """Compare a figure of the tables with what it should be."""

    label: str
    expected: int | Decimal
    found: int | Decimal

    @property
    def agrees(self) -> bool:
        """Tell whether the two are the same, to the cent."""
        return self.expected == self.found

    def as_row(self) -> tuple[str, str, str, bool]:
        """Return the entry as a row for people."""
        return self.label, _figure(self.expected), _figure(self.found), self.agrees


def _figure(value: int | Decimal) -> str:
    return money(value) if isinstance(value, Decimal) else f"{value:,}"


def balance(plan: Plan, rolled_back: str, mail_folder: Path) -> list[Entry]:
    """Return the books of this run; `rolled_back` is the reference of the order that never was."""
    paid, refused = len(plan.paid_rows), plan.refused_count
    orders, ordered = ask(ORDERS, plan)
    charged_once, received = ask(CHARGED_ONCE, plan)
    charges, charged = ask(CHARGES, plan)
    done, unpaid, _still_open = ask(ENDS, plan)
    jobs = count_jobs(plan, killed="")
    paid_sum = total(plan.paid_rows)
    return [
        Entry("Orders taken", len(plan.rows), orders),
        Entry("   their sum", total(plan.rows), ordered),
        Entry("Orders charged exactly once", paid, charged_once),
        Entry("   their sum", paid_sum, received),
        Entry("Charges in the gateway's own ledger", paid, charges),
        Entry("   their sum", paid_sum, charged),
        Entry("Receipts written, one for each paid order", paid, ask(RECEIPTS, plan)[0]),
        Entry("Mails with a receipt", paid, _count_mails(plan, mail_folder)),
        Entry("Orders not paid, the card being refused", refused, unpaid),
        Entry("Dead letters", refused, ask(DEAD_LETTERS, plan)[0]),
        Entry("Orders lost", 0, len(plan.rows) - done - unpaid),
        Entry("Jobs finished", plan.job_count, jobs.finished),
        Entry("Jobs unfinished", 0, jobs.unfinished),
        Entry(
            "Rows of the order that was rolled back",
            0,
            ask(ROLLED_BACK, plan, reference=rolled_back)[0],
        ),
    ]


def _count_mails(plan: Plan, folder: Path) -> int:
    """Count the files of this run: each is called after the job that sent it."""
    with connection.cursor() as cursor:
        cursor.execute(RECEIPT_JOBS, {"run": f"{plan.run}-"})
        return sum((folder / f"{job_id}@shop.example.eml").exists() for (job_id,) in cursor)
