"""What all pages share: they show rows, with bounded queries, and change none in place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from django.contrib import admin
from django.contrib.admin import ShowFacets
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import ORDER_VAR, ChangeList
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.db.models.constants import LOOKUP_SEP
from django.http import HttpRequest, HttpResponse

from django_durable.admin import display
from django_durable.admin.paginator import BoundedPaginator


class BoundedChangeList(ChangeList):
    """List rows in an order that an index has, without the columns that the list does not show."""

    model_admin: ReadOnlyAdmin

    def get_filters(self, request: HttpRequest) -> Any:
        if any("\x00" in text for texts in self.filter_params.values() for text in texts):
            # PostgreSQL would refuse the query.
            raise IncorrectLookupParameters
        return super().get_filters(request)

    def get_ordering(self, request: HttpRequest, queryset: QuerySet[Any]) -> list[Any]:
        if not self.model_admin.sortable_by:
            # Django takes `?o=` for columns without a link, too; it would sort the whole table.
            self.params.pop(ORDER_VAR, None)
        return list(super().get_ordering(request, queryset))

    def get_queryset(self, request: HttpRequest, exclude_parameters: Any = None) -> QuerySet[Any]:
        queryset: QuerySet[Any] = super().get_queryset(request, exclude_parameters)
        return queryset.only(*self.model_admin.list_columns)

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        if not (self.query or self.has_active_filters):
            # The search form then leaves the number to the foot of the list.
            self.full_result_count = self.result_count


class ReadOnlyAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """Show the rows of a table and offer operations on them, each with its permission.

    `list_columns` names the columns that a list page reads. `payload` gives the label of each
    display that only holders of `durable.view_payload` see, and `payload_columns` are the model's
    columns behind them, by which others can't filter either.
    """

    paginator = BoundedPaginator
    show_full_result_count = False
    show_facets = ShowFacets.NEVER
    list_per_page = 50
    sortable_by = ()
    actions: Sequence[Any] | None = ()

    # How many rows one action takes: the page that asks for confirmation names each in a field, and
    # Django takes 1,000 fields a form (DATA_UPLOAD_MAX_NUMBER_FIELDS).
    max_selected = 500

    list_columns: ClassVar[Sequence[str]] = ()
    payload: ClassVar[Mapping[str, Any]] = {}
    payload_columns: ClassVar[frozenset[str]] = frozenset()

    class Media:
        css: ClassVar[Any] = {"all": ["durable/admin.css"]}

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return BoundedChangeList

    def get_list_display(self, request: HttpRequest) -> Any:
        return self.shown(request, super().get_list_display(request))

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        return [
            (title, {**options, "fields": self.shown(request, options["fields"])})
            for title, options in super().get_fieldsets(request, obj)
        ]

    def shown(self, request: HttpRequest, names: Sequence[Any]) -> list[Any]:
        """Return the displays, with those of the payload replaced if the user may not see it."""
        if display.may_see_payload(request):
            return list(names)
        return [self._or_hidden(name) for name in names]

    def _or_hidden(self, name: Any) -> Any:
        if isinstance(name, (list, tuple)):
            return [self._or_hidden(part) for part in name]
        if isinstance(name, str) and name in self.payload:
            return display.hidden(name, self.payload[name])
        return name

    def lookup_allowed(self, lookup: str, value: Any, request: Any = None) -> bool:
        """Refuse to filter by what the user may not see, since it would answer guesses."""
        if lookup.split(LOOKUP_SEP)[0] in self.payload_columns and not (
            request is not None and display.may_see_payload(request)
        ):
            return False
        return super().lookup_allowed(lookup, value, request)

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        """Refuse an action that the user lacks the permission for, where Django just ignores it."""
        asked = set(request.POST.getlist("action")) & set(self.actions or ())
        if asked - set(self.get_actions(request)):
            raise PermissionDenied
        return super().changelist_view(request, extra_context)
