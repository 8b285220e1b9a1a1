"""Model fields and descriptors of the package's own."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from django.db import models
from django.db.models.fields.related_descriptors import ReverseOneToOneDescriptor

from django_durable import payloads
from django_durable.exceptions import PayloadDecodeError


@dataclass(frozen=True)
class Undecodable:
    """Stand for a stored value that can't be read, so that pages and querysets survive it."""

    text: str
    reason: str

    def __str__(self) -> str:
        return f"<undecodable: {self.reason}>"


class PayloadField(models.TextField):  # type: ignore[type-arg]
    """Keep a value in the codec of `django_durable.payloads`; NULL stays None.

    The column is `text`, since `jsonb` changes floats (1e16, -0.0). A value that can't be decoded
    reads as `Undecodable`.
    """

    def from_db_value(self, value: str | None, expression: Any, connection: Any) -> Any:
        if value is None:
            return None
        try:
            return payloads.decode(value)
        except PayloadDecodeError as error:
            return Undecodable(value, str(error))

    def get_prep_value(self, value: Any) -> Any:
        if value is None:
            return None
        if isinstance(value, Undecodable):
            return value.text
        return payloads.encode(value, where=self.name, limit=None)

    def to_python(self, value: Any) -> Any:
        return value

    def value_to_string(self, obj: Any) -> str:
        return str(self.get_prep_value(self.value_from_object(obj)))


# What PostgreSQL keeps reaches further than what Python can hold, in whatever time zone.
EARLIEST = datetime(1, 1, 2, tzinfo=UTC)
LATEST = datetime(9999, 12, 30, tzinfo=UTC)


def _within(sql: str, low: str, high: str) -> str:
    # NULL stays NULL, which these functions would pass over.
    return f"CASE WHEN {sql} IS NOT NULL THEN LEAST(GREATEST({sql}, {low}), {high}) END"


class MomentField(models.DateTimeField):  # type: ignore[type-arg]
    """Read a moment that Python can't hold as `EARLIEST` or `LATEST`.

    Somebody may have written "infinity" by SQL. An error would come from the driver, in the midst
    of all rows that are read together, and name none.
    """

    def select_format(self, compiler: Any, sql: str, params: Any) -> tuple[str, Any]:
        low, high = (f"'{bound.isoformat()}'::timestamptz" for bound in (EARLIEST, LATEST))
        return _within(sql, low, high), [*params, *params]

    def deconstruct(self) -> Any:
        name, _path, args, kwargs = super().deconstruct()
        return name, "django.db.models.DateTimeField", args, kwargs


class SpanField(models.DurationField):  # type: ignore[type-arg]
    """Read a duration that Python can't hold as one of 999,999 days, either way."""

    def select_format(self, compiler: Any, sql: str, params: Any) -> tuple[str, Any]:
        return _within(sql, "interval '-999999 days'", "interval '999999 days'"), [*params, *params]

    def deconstruct(self) -> Any:
        name, _path, args, kwargs = super().deconstruct()
        return name, "django.db.models.DurationField", args, kwargs


def can_be_read(moment: datetime) -> bool:
    """Tell whether an aware moment, as a `MomentField` reads it, is the one that was written."""
    return EARLIEST < moment < LATEST


class NoneWhenMissing(ReverseOneToOneDescriptor):  # type: ignore[type-arg]
    """Answer None where Django raises `RelatedObjectDoesNotExist`."""

    def __get__(self, instance: Any, cls: Any = None) -> Any:
        try:
            return super().__get__(instance, cls)
        except self.RelatedObjectDoesNotExist:
            return None


class OptionalOneToOneField(models.OneToOneField):  # type: ignore[type-arg]
    """Be a one-to-one relation whose other side reads None when there is no such row."""

    related_accessor_class = NoneWhenMissing

    def deconstruct(self) -> Any:
        name, _path, args, kwargs = super().deconstruct()
        return name, "django.db.models.OneToOneField", args, kwargs
