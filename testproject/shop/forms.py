"""What the shop accepts as an order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django import forms

from testproject.shop.models import Order

if TYPE_CHECKING:
    OrderModelForm = forms.ModelForm[Order]
else:
    OrderModelForm = forms.ModelForm


class OrderForm(OrderModelForm):
    """Check customer, date (YYYY-MM-DD) and amount (not negative, at most two decimals)."""

    class Meta:
        model = Order
        fields = ("customer", "date", "amount")
