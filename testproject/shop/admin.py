"""The shop's tables in the admin, to look at; only test cards are edited there."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest

from testproject.shop.models import (
    Delivery,
    GatewayCharge,
    GatewayRefund,
    LedgerEntry,
    Order,
    Parcel,
    Payment,
    Receipt,
    TestCard,
)


class ReadOnlyAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """Show rows that only the shop itself writes."""

    show_full_result_count = False

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Refuse to add."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Refuse to change."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Refuse to delete."""
        return False


@admin.register(Delivery)
class DeliveryAdmin(ReadOnlyAdmin):
    """Show deliveries."""

    list_display = ("reference", "customer", "amount", "status")
    list_filter = ("status",)
    ordering = ("-pk",)


admin.site.register([GatewayRefund, LedgerEntry, Parcel], ReadOnlyAdmin)


@admin.register(Order)
class OrderAdmin(ReadOnlyAdmin):
    """Show orders."""

    list_display = ("reference", "customer", "date", "amount", "status", "received_at")
    list_filter = ("status",)
    search_fields = ("=reference", "=customer")
    ordering = ("-pk",)


@admin.register(Payment)
class PaymentAdmin(ReadOnlyAdmin):
    """Show payments."""

    list_display = ("order", "amount", "charge_id", "paid_at")
    list_select_related = ("order",)
    search_fields = ("=order__reference",)
    ordering = ("-pk",)


@admin.register(Receipt)
class ReceiptAdmin(ReadOnlyAdmin):
    """Show receipts."""

    list_display = ("order", "written_at")
    list_select_related = ("order",)
    search_fields = ("=order__reference",)
    ordering = ("-pk",)


@admin.register(GatewayCharge)
class GatewayChargeAdmin(ReadOnlyAdmin):
    """Show the gateway's ledger."""

    list_display = ("id", "description", "customer", "amount", "charged_at")
    search_fields = ("=description", "=customer", "=key")
    ordering = ("-pk",)


@admin.register(TestCard)
class TestCardAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """Let people decide whose card is refused, and how often the gateway fails."""

    list_display = ("customer", "refused", "failures")
