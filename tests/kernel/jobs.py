"""Job types of the kernel's tests."""

from django_durable import job


@job(name="kernel.keyed")
def keyed() -> None:
    """Do nothing."""
