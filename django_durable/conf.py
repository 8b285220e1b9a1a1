"""The settings of the package: flat names, all optional, read when they are asked for.

Nothing is cached here: what `override_settings` or a late `settings.configure` says counts at once.
`checks.py` says which values are in range; this file hands on what it finds.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Generic, TypeVar

from django.conf import settings

T = TypeVar("T")


class Setting(Generic[T]):
    """Read the setting that is called `DURABLE_` and the attribute's name, or the default."""

    def __init__(self, default: T) -> None:
        self.default = default

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = f"DURABLE_{name.upper()}"

    def __get__(self, instance: object, owner: type) -> T:
        value: T = getattr(settings, self.name, self.default)
        return value


class Conf:
    """Give each setting as a typed attribute; use the one instance, `conf`."""

    database = Setting("default")
    lease = Setting(timedelta(seconds=30))
    poll_interval = Setting(timedelta(seconds=1))
    max_depth = Setting(32)
    max_payload = Setting(1024 * 1024)
    keep_completed = Setting[timedelta | None](timedelta(days=7))
    keep_dead = Setting[timedelta | None](timedelta(days=30))
    drop_completed_payloads = Setting(False)
    fair_share = Setting[int | None](10)
    defaults = Setting[Mapping[str, Any]]({})
    notify = Setting(True)
    listen_database = Setting[str | None](None)

    def freeze(self) -> None:
        """Read every setting now, for the rest of this process; a worker's jobs pay no more."""
        vars(self).update({name: getattr(self, name) for name in _ATTRIBUTES})


_ATTRIBUTES = [name for name, value in vars(Conf).items() if isinstance(value, Setting)]

conf = Conf()

SETTINGS: dict[str, Setting[Any]] = {
    setting.name: setting for setting in vars(Conf).values() if isinstance(setting, Setting)
}
