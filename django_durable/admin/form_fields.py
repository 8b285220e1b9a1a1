"""The fields of forms: durations as people write them, payloads in their stored form."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.utils.duration import duration_string
from django.utils.translation import gettext

from django_durable import payloads
from django_durable.durations import parse_duration
from django_durable.exceptions import PayloadDecodeError
from django_durable.fields import Undecodable


class DurationText(forms.DurationField):
    """Read `30s`, `15m`, `2h` beside Django's own forms."""

    def prepare_value(self, value: Any) -> Any:
        return duration_string(value) if isinstance(value, timedelta) else value

    def to_python(self, value: Any) -> Any:
        try:
            return parse_duration(value)
        except ValueError:
            return super().to_python(value)


class PayloadText(forms.Field):
    """Show and read a payload in its stored form, which is JSON; any value without a `kind`."""

    widget = forms.Textarea(attrs={"rows": 3, "spellcheck": "false"})

    def __init__(self, kind: type[Any] | None = None, **options: Any) -> None:
        super().__init__(required=False, initial=kind, **options)
        self._kind = kind

    def prepare_value(self, value: Any) -> Any:
        if isinstance(value, Undecodable):
            return value.text
        return value if isinstance(value, str) else payloads.encode(value, where="", limit=None)

    def to_python(self, value: Any) -> Any:
        text = str(value or "").strip()
        if not text:
            return None if self._kind is None else self._kind()
        try:
            read = payloads.decode(text)
        except PayloadDecodeError as error:
            raise self._unreadable() from error
        if self._kind is not None and not isinstance(read, self._kind):
            raise self._unreadable()
        return read

    def _unreadable(self) -> ValidationError:
        wanted = '{"name": 1}' if self._kind is dict else "[1, 2]"
        return ValidationError(gettext("Write JSON such as %(wanted)s.") % {"wanted": wanted})
