"""A ledger, to count what really happened; a test makes the table."""

from __future__ import annotations

from django.db import models


class Debit(models.Model):
    """Record one debit of an account; nothing forbids a second one for the same cause."""

    cause = models.CharField(max_length=100)
    amount = models.IntegerField()

    class Meta:
        app_label = "workerapp"

    def __str__(self) -> str:
        return f"debit for {self.cause}"
