"""What people do to jobs from the admin: the operations, their confirmation and their records."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from django import forms
from django.contrib import messages
from django.contrib.admin import helpers
from django.contrib.admin.models import LogEntry
from django.contrib.admin.utils import model_ngettext, quote, unquote
from django.core.exceptions import PermissionDenied
from django.db import router, transaction
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import path
from django.utils.html import format_html
from django.utils.translation import gettext, ngettext

from django_durable.admin import display
from django_durable.admin.base import ReadOnlyAdmin
from django_durable.conf import conf
from django_durable.exceptions import DurableError
from django_durable.models import Job

SHOWN = 50


@dataclass(frozen=True)
class Operation:
    """Describe something that can be done to the rows of a page.

    `action` names the bulk action and `slug` the page for one row; `permission` is asked as
    `has_<permission>_permission`. `outlook` says in words what would happen to a row, `possible`
    whether anything would. `perform` does it, writes a `LogEntry` for each row that it changed and
    tells the user. With a `form` instead, it is done to one row at a time, with what the form says.
    """

    action: str
    slug: str
    permission: str
    label: Any
    title: Any
    warning: Any
    button: Any
    outlook: Callable[[Any], str]
    possible: Callable[[Any], bool]
    perform: Callable[[OperationsAdmin, HttpRequest, Sequence[Any]], None] | None = None
    form: type[OperationForm] | None = None
    confirm: bool = True
    takes_reason: bool = False


class OperationForm(forms.Form):
    """Ask what an operation on one row needs to know, and do it."""

    # What is wrong with what was asked, and said in the form: anything else is a bug.
    refusals: tuple[type[Exception], ...] = (DurableError, TypeError, ValueError)

    def __init__(self, request: HttpRequest, obj: Any, data: Any = None) -> None:
        super().__init__(data)
        self.request = request
        self.obj = obj
        self.prepare()

    def prepare(self) -> None:
        """Fit the fields to the row and the user."""

    def perform(self, model_admin: OperationsAdmin) -> None:
        """Do it, write a `LogEntry` and tell the user; may raise one of `refusals`."""
        raise NotImplementedError

    def do(self, model_admin: OperationsAdmin) -> bool:
        """Do it if the form is right; else it has an error that says why not."""
        if not self.is_valid():
            return False
        try:
            self.perform(model_admin)
        except self.refusals as error:
            self.add_error(None, str(error))
            return False
        return True


@contextmanager
def one_commit() -> Iterator[None]:
    """Commit an operation and its record together, where one database has both."""
    with (
        transaction.atomic(using=conf.database),
        transaction.atomic(using=router.db_for_write(LogEntry)),
    ):
        yield


def tell_of_new_jobs(
    model_admin: OperationsAdmin, request: HttpRequest, made: Sequence[Job], one: str
) -> None:
    """Tell how many jobs were made; of a single one with `one`, which has a place for its link."""
    if len(made) == 1:
        text: str = format_html(one, display.link(model_admin.admin_site, Job, made[0].pk, made[0]))
    else:
        text = ngettext(
            "%(count)d new job was made.", "%(count)d new jobs were made.", len(made)
        ) % {"count": len(made)}
    model_admin.message_user(request, text, messages.SUCCESS)


def switch(
    model_admin: OperationsAdmin,
    request: HttpRequest,
    rows: Sequence[Any],
    *,
    change: Callable[[Any], bool],
    record: str,
    told: Callable[[int], str],
) -> None:
    """Change each row that is not so yet, with its record, and tell how many were."""
    changed = 0
    for row in rows:
        with one_commit():
            if change(row):
                changed += 1
                model_admin.log_change(request, row, record)
    level = messages.SUCCESS if changed else messages.WARNING
    model_admin.message_user(request, told(changed) % {"count": changed}, level)


class OperationsAdmin(ReadOnlyAdmin):
    """Offer operations as bulk actions and as buttons of one row."""

    operations: Sequence[Operation] = ()

    def get_urls(self) -> list[Any]:
        """Add a page for each operation on one row."""
        name = f"{self.opts.app_label}_{self.opts.model_name}"
        own = [
            path(
                f"<path:object_id>/{operation.slug}/",
                self.admin_site.admin_view(self.operation_view),
                {"operation": operation},
                name=f"{name}_{operation.slug.replace('-', '_')}",
            )
            for operation in self.operations
        ]
        return [*own, *super().get_urls()]

    def is_allowed(self, request: HttpRequest, operation: Operation, obj: Any = None) -> bool:
        """Tell whether the user may do it, to this row if one is given."""
        has_permission = getattr(self, f"has_{operation.permission}_permission")
        return bool(self.has_view_permission(request, obj) and has_permission(request, obj))

    def prepare(self, objects: list[Any]) -> None:
        """Fetch what the operations need of these rows, in a fixed number of queries."""

    def chosen(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Return the rows that the form names.

        The list's filters count only where all its rows were chosen: a row that was ticked is
        meant, also when it has moved on and no longer matches.
        """
        if request.POST.get("select_across", "0") in {"", "0", "false", "False"}:
            names = request.POST.getlist(helpers.ACTION_CHECKBOX_NAME)
            queryset = self.get_queryset(request).filter(pk__in=names)
        return queryset.only(*self.list_columns).order_by("pk")

    def within_bounds(self, request: HttpRequest, objects: Sequence[Any]) -> bool:
        """Tell whether one action can take these rows; tell the user if not."""
        if not objects:
            message = gettext("Nothing was done: what you chose is not there any more.")
        elif len(objects) > self.max_selected:
            message = gettext(
                "Nothing was done: choose at most %(most)d at once. The command “manage.py"
                " durable” has no such limit."
            ) % {"most": self.max_selected}
        else:
            return True
        self.message_user(request, message, messages.ERROR)
        return False

    def operate(
        self, request: HttpRequest, queryset: QuerySet[Any], operation: Operation
    ) -> HttpResponse | None:
        """Do an operation to the rows that a list's form names, once it is confirmed."""
        objects = list(self.chosen(request, queryset)[: self.max_selected + 1])
        if not self.within_bounds(request, objects):
            return None
        self.prepare(objects)
        if operation.confirm and request.POST.get("confirm") != "yes":
            return self._confirmation(request, objects, operation, back=request.get_full_path())
        self._perform(request, objects, operation)
        return None

    def operation_view(
        self, request: HttpRequest, object_id: str, operation: Operation
    ) -> HttpResponse:
        """Ask whether to do an operation to one row; a confirmed POST does it."""
        obj = self.get_object(request, unquote(object_id))
        if not self.is_allowed(request, operation, obj):
            raise PermissionDenied
        if obj is None:
            message = gettext("There is no %(name)s “%(key)s” any more.") % {
                "name": self.opts.verbose_name,
                "key": unquote(object_id),
            }
            self.message_user(request, message, messages.WARNING)
            return HttpResponseRedirect(display.page_url(self.admin_site, self.model, "changelist"))
        back = display.page_url(self.admin_site, self.model, "change", obj.pk)
        is_confirmed = request.method == "POST" and request.POST.get("confirm") == "yes"
        if operation.form is not None:
            form = operation.form(request, obj, request.POST if is_confirmed else None)
            if is_confirmed and operation.possible(obj) and form.do(self):
                return HttpResponseRedirect(back)
            return self._confirmation(request, [obj], operation, back=back, form=form)
        if is_confirmed:
            self._perform(request, [obj], operation)
            return HttpResponseRedirect(back)
        return self._confirmation(request, [obj], operation, back=back)

    def buttons(self, request: HttpRequest, obj: Any) -> list[dict[str, Any]]:
        """Return the operations that the user can do to this row now."""
        return [
            {
                "label": operation.label,
                "url": display.page_url(
                    self.admin_site, self.model, operation.slug.replace("-", "_"), obj.pk
                ),
            }
            for operation in self.operations
            if operation.possible(obj) and self.is_allowed(request, operation, obj)
        ]

    def render_change_form(
        self, request: HttpRequest, context: Any, *args: Any, **kwargs: Any
    ) -> HttpResponse:
        """Add the buttons."""
        obj = kwargs.get("obj")
        if obj is not None:
            context["durable_buttons"] = self.buttons(request, obj)
        return super().render_change_form(request, context, *args, **kwargs)

    def _perform(self, request: HttpRequest, objects: Sequence[Any], operation: Operation) -> None:
        if not all(self.is_allowed(request, operation, obj) for obj in objects):
            raise PermissionDenied
        if operation.perform is not None:
            operation.perform(self, request, objects)

    def _confirmation(
        self,
        request: HttpRequest,
        objects: Sequence[Any],
        operation: Operation,
        back: str,
        form: OperationForm | None = None,
    ) -> HttpResponse:
        request.current_app = self.admin_site.name
        shown = [
            {
                "name": display.link(self.admin_site, self.model, obj.pk, obj),
                "outlook": operation.outlook(obj),
            }
            for obj in objects[:SHOWN]
        ]
        context = {
            **self.admin_site.each_context(request),
            "title": operation.title,
            "subtitle": None,
            "opts": self.opts,
            "media": self.media,
            "operation": operation,
            "shown": shown,
            "more": len(objects) - len(shown),
            "count": f"{len(objects)} {model_ngettext(self.opts, len(objects))}",
            "keys": [quote(obj.pk) for obj in objects],
            "possible": any(operation.possible(obj) for obj in objects),
            "action_checkbox_name": helpers.ACTION_CHECKBOX_NAME,
            "back": back,
            "form": form,
        }
        return TemplateResponse(request, "admin/durable/confirm_operation.html", context)
