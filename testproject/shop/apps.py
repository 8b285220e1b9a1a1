"""The app configuration of the shop."""

from django.apps import AppConfig


class ShopConfig(AppConfig):
    """Install the shop."""

    name = "testproject.shop"
    default_auto_field = "django.db.models.BigAutoField"
