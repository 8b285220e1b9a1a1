"""A client of the shop: it sends orders by HTTP, some at once."""

from __future__ import annotations

import http.client
import json
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from urllib.parse import urlsplit

from testproject.demo import DemoError
from testproject.demo.orders import Row

SENDERS = 4
TIMEOUT_SECONDS = 30

CREATED, FOUND, REFUSED = 201, 200, 422


class Client:
    """Send orders to the shop at a URL, each thread over a connection of its own."""

    def __init__(self, url: str) -> None:
        self._address = urlsplit(url).netloc
        self._local = threading.local()

    def send(self, reference: str, row: Row) -> int:
        """Send one order and return the status of the answer.

        Raise `DemoError` for an answer that is none of `CREATED`, `FOUND` and `REFUSED`.
        """
        connection = getattr(self._local, "connection", None)
        if connection is None:
            connection = http.client.HTTPConnection(self._address, timeout=TIMEOUT_SECONDS)
            self._local.connection = connection
        order = {"customer": row.customer, "date": str(row.date), "amount": str(row.amount)}
        headers = {"Content-Type": "application/json", "Idempotency-Key": reference}
        try:
            connection.request("POST", "/orders/", json.dumps(order), headers)
            response = connection.getresponse()
            body = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise DemoError(f"The shop does not answer: {error!r}") from error
        if response.status not in (CREATED, FOUND, REFUSED):
            text = body.decode(errors="replace")[:500]
            raise DemoError(f"Line {row.line}: the shop answered {response.status}: {text}")
        return response.status

    def send_all(
        self, orders: Sequence[tuple[str, Row]], show: Callable[[int], None]
    ) -> Counter[int]:
        """Send orders, a few at once; return how often there was which answer.

        `show` gets the number of the answers so far; what it raises ends the sending.
        """
        answers: Counter[int] = Counter()
        pool = ThreadPoolExecutor(SENDERS)
        try:
            sent = [pool.submit(self.send, *order) for order in orders]
            for future in as_completed(sent):
                answers[future.result()] += 1
                show(answers.total())
        finally:
            pool.shutdown(cancel_futures=True)
        return answers
