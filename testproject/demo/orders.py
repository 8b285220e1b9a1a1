"""The orders of a demonstration, read from a CSV, and the part that each of them plays."""

from __future__ import annotations

import csv
import io
import secrets
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from functools import cached_property
from pathlib import Path

from testproject.demo import DemoError

# What columns are called, the best name first.
COLUMNS = {
    "customer": ("customer", "customer_id", "customerid", "client", "id"),
    "date": ("date", "order_date", "orderdate", "ordered", "invoicedate", "day"),
    "amount": ("amount", "total", "sum", "price", "value"),
}
SENT_TWICE_EVERY = 10
# What the reference of every order of every run begins with.
RUN_PREFIX = "demo-"


@dataclass(frozen=True)
class Row:
    """Be one order of the file. Two rows may be equal in all but their line: two orders then."""

    line: int
    customer: str
    date: date
    amount: Decimal


def read_orders(path: Path) -> list[Row]:
    """Read a CSV with a customer, a date and an amount in each row, in any order and case.

    Raise `DemoError` with the number of the first line that has no such thing.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DemoError(f"Can't read the orders: {error}") from error
    head = text.partition("\n")[0]
    delimiter = max(",;\t", key=head.count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    places = _places(next(reader, []), path)
    rows = [_row(reader.line_num, cells, places, path) for cells in reader if any(cells)]
    if not rows:
        raise DemoError(f"{path} has no orders.")
    return rows


def _places(head: list[str], path: Path) -> dict[str, int]:
    names = [name.strip().lower().replace(" ", "_") for name in head]
    places = {}
    for column, known in COLUMNS.items():
        found = [names.index(name) for name in known if name in names]
        if not found:
            raise DemoError(f"{path} has no column {column}: its first line is {','.join(head)!r}.")
        places[column] = found[0]
    return places


def _row(line: int, cells: list[str], places: dict[str, int], path: Path) -> Row:
    try:
        customer, day, amount = (cells[places[column]].strip() for column in COLUMNS)
        row = Row(line, customer, datetime.fromisoformat(day).date(), Decimal(amount))
    except (IndexError, ValueError, InvalidOperation) as error:
        raise DemoError(
            f"{path}, line {line}: {cells} is not a customer, a date such as 2026-11-29 or"
            " 20261129, and an amount such as 12.50."
        ) from error
    if not customer or not row.amount.is_finite() or row.amount < 0:
        raise DemoError(f"{path}, line {line}: an order has a customer, and no negative amount.")
    return row


@dataclass(frozen=True)
class Plan:
    """Say which order plays which part.

    `run` is in the reference of every order, so that the books of one run leave out all others.
    The trouble goes to customers with few orders, best with one: the first has a card that is
    refused, and one who comes late meets a gateway that fails. From order `hang_at` on the gateway
    hangs, and once order `kill_at` is sent the worker is killed.
    """

    rows: list[Row]
    run: str = field(default_factory=lambda: RUN_PREFIX + secrets.token_hex(4))

    @cached_property
    def _rarest(self) -> list[str]:
        orders = Counter(row.customer for row in self.rows)
        return sorted(orders, key=orders.__getitem__)

    @property
    def refused_customer(self) -> str | None:
        """Return whose card is refused: nobody's, if there is but one customer."""
        return self._rarest[0] if len(self._rarest) > 1 else None

    @cached_property
    def failing_customer(self) -> str:
        """Return whose first two calls to the gateway fail: best after the worker was killed."""
        early = {row.customer for row in self.rows[: self.kill_at]}
        others = self._rarest[1:] or self._rarest
        late = [customer for customer in others if customer not in early]
        return (late or others)[0]

    @property
    def hang_at(self) -> int:
        """Return how many orders are sent before the gateway hangs."""
        return min(2 * len(self.rows) // 5, self.kill_at - 1)

    @property
    def kill_at(self) -> int:
        """Return how many orders are sent before the worker is killed."""
        return max(len(self.rows) // 2, 1)

    @cached_property
    def paid_rows(self) -> list[Row]:
        """Return the orders that are paid in the end."""
        return [row for row in self.rows if row.customer != self.refused_customer]

    @property
    def refused_count(self) -> int:
        """Return how many orders are refused for good."""
        return len(self.rows) - len(self.paid_rows)

    @property
    def job_count(self) -> int:
        """Return how many jobs there are: three for an order, two where no receipt is due."""
        return 3 * len(self.rows) - self.refused_count

    def reference(self, row: Row) -> str:
        """Return the idempotency key of an order: of the row, not of what it says."""
        return f"{self.run}-{row.line}"

    def sendings(self, rows: Iterable[Row]) -> list[Row]:
        """Return the orders as they are sent: every tenth twice, as by an impatient client."""
        return [row for row in rows for _ in range(1 + self.is_sent_twice(row))]

    def is_sent_twice(self, row: Row) -> bool:
        """Tell whether an order is sent twice."""
        return row.line % SENT_TWICE_EVERY == 0


def total(rows: Iterable[Row]) -> Decimal:
    """Return the sum of the orders."""
    return sum((row.amount for row in rows), Decimal(0))
