"""Two orders that go out in parcels, each seen through by a workflow; one is refused in the end."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from typing import Any
from urllib.parse import urlsplit

from django.db import connections
from django.db.models import QuerySet, Sum

from django_durable.models import Job, Step
from django_durable.querysets import JobQuerySet
from testproject.demo import DemoError
from testproject.demo.books import Entry
from testproject.demo.story import Story, count
from testproject.shop.models import Delivery, GatewayCharge, GatewayRefund, LedgerEntry, Parcel
from testproject.shop.tasks import PARCELS, deliver, place_delivery

CUSTOMER = "parcels"
AMOUNTS = {"approved": Decimal("120.00"), "refused": Decimal("80.00")}
PATIENCE_SECONDS = 60.0


class Parcels:
    """Place two deliveries, decide about them over HTTP, and keep their books."""

    def __init__(self, run: str, story: Story) -> None:
        # Begins otherwise than the orders of the file, whose books are kept apart.
        self._prefix = f"parcels-{run}-"
        self._story = story

    def place(self, which: str) -> None:
        """Place the one that is to be approved, or the one that is to be refused."""
        with ThreadPoolExecutor(1) as pool:
            # On a connection of its own: that of this thread may be holding the gateway up.
            pool.submit(self._place, which).result()

    def _place(self, which: str) -> None:
        try:
            place_delivery(self._prefix + which, customer=CUSTOMER, amount=AMOUNTS[which])
        finally:
            connections.close_all()

    def wait_until_charged(self, pause: Callable[[], None]) -> None:
        """Wait until the first one has charged, so that a hanging gateway does not stop it."""
        charged = Step.objects.filter(job__in=self._jobs(), name="charge")
        give_up_at = time.monotonic() + PATIENCE_SECONDS
        while not charged.exists() and time.monotonic() < give_up_at:
            pause()

    def is_under_way(self) -> bool:
        """Tell whether the first one waits, with work done, and the second one is charging."""
        found = self._jobs().values_list("idempotency_key", "status")
        wanted = {"approved": Job.Status.WAITING, "refused": Job.Status.RUNNING}
        return dict(found) == {self._prefix + which: status for which, status in wanted.items()}

    def decide(self, url: str) -> None:
        """Send both decisions, as a person's browser would."""
        for which in AMOUNTS:
            connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=30)
            body = json.dumps({"approved": which == "approved"})
            path = f"/deliveries/{self._prefix}{which}/approval"
            connection.request("POST", path, body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            said = answer.read().decode(errors="replace")
            connection.close()
            if answer.status != 200:
                raise DemoError(f"The shop answered the decision {answer.status}: {said}")

    def wait(self, pause: Callable[[], None]) -> None:
        """Wait until both workflows have ended."""
        give_up_at = time.monotonic() + PATIENCE_SECONDS
        while self._jobs().filter(finished_at=None).exists():
            if time.monotonic() > give_up_at:
                raise DemoError("The deliveries do not come to their end.")
            pause()

    def tell(self) -> None:
        """Tell what the two workflows did, and in how many attempts."""
        for job in self._jobs().order_by("pk"):
            did = Step.objects.filter(job=job).order_by("ordinal").values_list("name", flat=True)
            self._story.say(
                f"A delivery of {PARCELS} parcels is {job.result(timeout=5)}, in"
                f" {count(job.attempt, 'attempt')}: {', '.join(did)}."
            )

    def balance(self) -> list[Entry]:
        """Return the books of the two."""
        own = {"delivery__reference__startswith": self._prefix}
        charges = GatewayCharge.objects.filter(description__startswith=self._prefix)
        booked = LedgerEntry.objects.filter(**own)
        refunds = GatewayRefund.objects.filter(charge__in=charges)
        settled = Delivery.objects.filter(
            reference__startswith=self._prefix, status__in=["DONE", "REFUNDED"]
        )
        return [
            Entry("Deliveries seen through by workflows", len(AMOUNTS), settled.count()),
            Entry("   charges for them", len(AMOUNTS), charges.count()),
            Entry("   parcels sent", len(AMOUNTS) * PARCELS, Parcel.objects.filter(**own).count()),
            Entry("   entries in the ledger, one taken back", 3, booked.count()),
            Entry("   their sum", AMOUNTS["approved"], _sum(booked)),
            Entry("   paid back", AMOUNTS["refused"], _sum(refunds)),
        ]

    def _jobs(self) -> JobQuerySet:
        jobs: JobQuerySet = Job.objects.filter(
            name=deliver.name, idempotency_key__startswith=self._prefix
        )
        return jobs


def _sum(rows: QuerySet[Any]) -> Decimal:
    return rows.aggregate(sum=Sum("amount"))["sum"] or Decimal(0)
