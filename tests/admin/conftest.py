"""Fixtures of the admin's tests."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client

StaffMaker = Callable[..., Client]


@pytest.fixture
def staff(db: None) -> StaffMaker:
    """Log a new member of staff in who has just these permissions of the app."""

    def log_in(*codenames: str) -> Client:
        user = User.objects.create_user(f"staff-{User.objects.count()}", is_staff=True)
        found = Permission.objects.filter(content_type__app_label="durable", codename__in=codenames)
        assert {permission.codename for permission in found} == set(codenames)
        user.user_permissions.set(found)
        client = Client()
        client.force_login(user)
        return client

    return log_in


@pytest.fixture
def root(db: None) -> Client:
    """Log a superuser in who is called `root`."""
    client = Client()
    client.force_login(User.objects.create_superuser("root"))
    return client
