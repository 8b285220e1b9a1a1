"""The tables of the shop, and those of the card gateway that it pays through."""

from __future__ import annotations

from decimal import Decimal
from typing import Any, ClassVar

from django.core.validators import MinValueValidator
from django.db import models
from django.db.models import Q


class Order(models.Model):
    """Hold what a customer ordered, and how far the shop is with it."""

    class Status(models.TextChoices):
        """Name the stations of an order, in their order; a card that fails is the other end."""

        NEW = "NEW", "new"
        ACCEPTED = "ACCEPTED", "accepted"
        PAID = "PAID", "paid"
        DONE = "DONE", "receipt sent"
        UNPAID = "UNPAID", "not paid"

    # The client's idempotency key: who sends an order twice gets the one order that there is.
    reference = models.CharField(max_length=200, unique=True)
    customer = models.CharField(max_length=100)
    date = models.DateField()
    # Zero for what is given away, which is charged and receipted like all else.
    amount = models.DecimalField(
        max_digits=12, decimal_places=2, validators=[MinValueValidator(Decimal(0))]
    )
    status = models.CharField(max_length=8, choices=Status, default=Status.NEW)
    received_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints: ClassVar[Any] = [
            models.CheckConstraint(condition=Q(amount__gte=0), name="shop_order_amount")
        ]

    def __str__(self) -> str:
        return f"order {self.reference}"


class Payment(models.Model):
    """Record that an order is paid; the database keeps it at one payment for each order."""

    order = models.OneToOneField(Order, models.CASCADE, related_name="payment")
    amount = models.DecimalField(max_digits=12, decimal_places=2)
    charge_id = models.BigIntegerField(unique=True)
    paid_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return f"payment of {self.order}"


class Receipt(models.Model):
    """Keep the receipt of an order as it was mailed."""

    order = models.OneToOneField(Order, models.CASCADE, related_name="receipt")
    text = models.TextField()
    written_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return f"receipt for {self.order}"


class Delivery(models.Model):
    """Hold an order that goes out in parcels, which a workflow sees through."""

    class Status(models.TextChoices):
        """Name how far it is; one that is refused in the end is paid back."""

        NEW = "NEW", "new"
        BOOKED = "BOOKED", "charged and booked"
        DONE = "DONE", "approved"
        REFUNDED = "REFUNDED", "paid back"

    reference = models.CharField(max_length=200, unique=True)
    customer = models.CharField(max_length=100)
    amount = models.DecimalField(max_digits=12, decimal_places=2)
    status = models.CharField(max_length=8, choices=Status, default=Status.NEW)

    class Meta:
        verbose_name_plural = "deliveries"

    def __str__(self) -> str:
        return f"delivery {self.reference}"


class LedgerEntry(models.Model):
    """Be an entry in the shop's ledger; nothing but the workflow keeps it from a second one."""

    delivery = models.ForeignKey(Delivery, models.CASCADE, related_name="entries")
    amount = models.DecimalField(max_digits=12, decimal_places=2)
    booked_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        verbose_name_plural = "ledger entries"

    def __str__(self) -> str:
        return f"{self.amount} of {self.delivery}"


class Parcel(models.Model):
    """Be one parcel that has left the house."""

    delivery = models.ForeignKey(Delivery, models.CASCADE, related_name="parcels")
    number = models.PositiveIntegerField()
    sent_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return f"parcel {self.number} of {self.delivery}"


class GatewayCharge(models.Model):
    """Be the gateway's own ledger: one charge for each idempotency key.

    `description` is what the shop says the charge is for. The gateway makes nothing of it, so two
    charges for one order would be possible here, and would show.
    """

    key = models.CharField(max_length=200, unique=True)
    description = models.CharField(max_length=200)
    customer = models.CharField(max_length=100)
    amount = models.DecimalField(max_digits=12, decimal_places=2)
    charged_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return f"charge {self.pk}: {self.description}"


class GatewayRefund(models.Model):
    """Be a charge that the gateway has paid back: once, however often it is asked."""

    charge = models.OneToOneField(GatewayCharge, models.CASCADE, related_name="refund")
    amount = models.DecimalField(max_digits=12, decimal_places=2)

    def __str__(self) -> str:
        return f"refund of {self.charge}"


class TestCard(models.Model):
    """Tell the gateway how to treat a customer's card, as payment providers' test cards do."""

    __test__ = False  # no class of tests

    customer = models.CharField(max_length=100, unique=True)
    refused = models.BooleanField(default=False)
    failures = models.PositiveIntegerField(
        default=0, help_text="So many of the next calls find the gateway out of order."
    )

    def __str__(self) -> str:
        return f"card of {self.customer}"
