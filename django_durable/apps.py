"""The Django app."""

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class DurableConfig(AppConfig):
    """Register the app `durable`."""

    name = "django_durable"
    label = "durable"
    verbose_name = _("Durable jobs")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register the system checks; query nothing."""
        from django_durable.checks import register_checks

        register_checks()
