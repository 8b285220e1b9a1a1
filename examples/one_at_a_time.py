"""What belongs to one account runs one at a time; other accounts don't wait for it."""

import threading
from decimal import Decimal
from uuid import uuid4

from django.utils import timezone

from django_durable import job
from examples.demo import say, worker


def account_of(account: str, amount: int) -> str:
    return f"account-{account}"


@job(concurrency_key=account_of)
def pay_in(account: str, amount: int) -> None:
    book(account, amount)


# The same key, so never beside a payment into the account either.
@job(concurrency_key=account_of)
def pay_out(account: str, amount: int) -> None:
    book(account, -amount)


def book(account: str, amount: int) -> None:
    from testproject.shop.models import Order

    # Reads, thinks, writes: two at once would lose one of the two.
    row = Order.objects.get(reference=account)
    threading.Event().wait(0.02)
    Order.objects.filter(reference=account).update(amount=row.amount + amount)


def main() -> None:
    from testproject.shop.models import Order

    accounts = {name: f"{name}-{uuid4()}" for name in ("Ada", "Grace")}
    for name, account in accounts.items():
        Order.objects.create(
            reference=account, customer=name, date=timezone.now().date(), amount=Decimal(0)
        )
    calls = [((account, 10), {}) for _ in range(15) for account in accounts.values()]
    jobs = [*pay_in.enqueue_many(calls), *pay_out.enqueue_many(calls[:10])]
    with worker("--concurrency", "8"), worker("--concurrency", "8"):
        for each in jobs:
            each.result(timeout=60)
    for name, account in accounts.items():
        say(f"{name} has {Order.objects.get(reference=account).amount:.0f}")
