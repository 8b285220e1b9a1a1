"""Deleting jobs from the admin: whole trees that have ended, by Django's own pages."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin import actions
from django.db import transaction
from django.db.models import PROTECT, RESTRICT, ProtectedError, Q, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.html import format_html
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_durable import relations
from django_durable.admin import display
from django_durable.admin.operating import OperationsAdmin, one_commit
from django_durable.conf import conf
from django_durable.models import Attempt, DeadLetter, Job
from django_durable.querysets import IsHeld

# How many of the jobs that forbid a deletion are named, and how many rows are counted exactly.
NAMED = 20
MOST_COUNTED = 10_000


class DeletesTrees(OperationsAdmin):
    """Say what a deletion takes along in a fixed number of bounded queries, and refuse cleanly."""

    def get_deleted_objects(self, objs: Iterable[Any], request: HttpRequest) -> Any:
        """Replace Django's collector, which would load every descendant."""
        jobs = list(objs[: self.max_selected] if isinstance(objs, QuerySet) else objs)
        ids = [job.pk for job in jobs]
        protected = [self._why_not(job) for job in _forbidding(ids)]
        if protected:
            return [], {}, set(), protected
        members = Job.all_objects.filter(_in_trees(ids))
        others, lacking, protected = self._users_rows(members, request)
        if protected:
            return [], {}, set(), protected
        counts = others | {
            rows.model._meta.verbose_name_plural: _bounded(rows)
            for rows in (
                members,
                Attempt.objects.filter(job__in=members.values("pk")),
                DeadLetter.all_objects.filter(job__in=members.values("pk")),
            )
        }
        named = [display.link(self.admin_site, Job, job.pk, job) for job in jobs]
        return named, {name: count for name, count in counts.items() if count != "0"}, lacking, []

    def _users_rows(
        self, members: QuerySet[Job], request: HttpRequest
    ) -> tuple[dict[Any, str], set[Any], list[str]]:
        """Count the rows of users' models that go along; say which may not, and which forbid it.

        Only those that point to the jobs or their records themselves.
        """
        counts: dict[Any, str] = {}
        lacking: set[Any] = set()
        protected: list[str] = []
        for field, rows in relations.pointing_rows(members):
            meta, on_delete = field.model._meta, field.remote_field.on_delete
            if on_delete in (PROTECT, RESTRICT):
                protected += [f"{meta.verbose_name}: {row}" for row in rows[:NAMED]]
            elif rows.exists():
                counts[meta.verbose_name_plural] = _bounded(rows)
                shown = self.admin_site._registry.get(field.model)
                if shown is not None and not shown.has_delete_permission(request):
                    lacking.add(meta.verbose_name)
        return counts, lacking, protected

    @admin.action(permissions=["delete"], description=_("Delete selected %(verbose_name_plural)s"))
    def delete_selected(self, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse | None:
        """Do what Django's action does, within bounds; a job that must stay is a message."""
        chosen = self.chosen(request, queryset)
        if not self.within_bounds(request, list(chosen[: self.max_selected + 1])):
            return None
        if request.POST.get("confirm") == "yes":
            # What confirms every other action confirms this one too.
            confirmed = request.POST.copy()
            confirmed["post"] = "yes"
            request.POST = confirmed  # type: ignore[assignment]
        try:
            with one_commit():
                response: HttpResponse | None = actions.delete_selected(self, request, chosen)
        except ProtectedError:
            self._refuse(request)
            return None
        return response

    def delete_view(
        self, request: HttpRequest, object_id: str, extra_context: Any = None
    ) -> HttpResponse:
        """Do what Django's view does; a job that has come to life meanwhile is a message."""
        try:
            with transaction.atomic(using=conf.database):
                return super().delete_view(request, object_id, extra_context)
        except ProtectedError:
            self._refuse(request)
            return HttpResponseRedirect(request.path)

    def response_delete(self, request: HttpRequest, obj_display: str, obj_id: int) -> HttpResponse:
        """Go on to the list, which Django does only for those who may change rows in place."""
        super().response_delete(request, obj_display, obj_id)
        return HttpResponseRedirect(display.page_url(self.admin_site, Job, "changelist"))

    def _refuse(self, request: HttpRequest) -> None:
        text = gettext(
            "Nothing was deleted: only a root whose whole tree has ended, that no live job has"
            " awaited and no row of another table holds, can be deleted. Cancel it first."
        )
        self.message_user(request, text, messages.ERROR)

    def _why_not(self, job: Job) -> str:
        link = display.link(self.admin_site, Job, job.pk, job)
        if not job.is_finished:
            return format_html(gettext("{} has not ended"), link)
        if job.parent_id is not None:
            return format_html(gettext("{} belongs to the tree of another job"), link)
        return format_html(gettext("{} is kept for a living job that has awaited it"), link)


def _in_trees(ids: list[Any]) -> Q:
    return Q(pk__in=ids) | Q(root__in=ids, parent__isnull=False)


def _forbidding(ids: list[Any]) -> list[Job]:
    """Return the first jobs for which the listed ones can't be deleted."""
    children = Q(pk__in=ids, parent__isnull=False) & ~Q(root__in=ids)
    living = _in_trees(ids) & Q(finished_at__isnull=True)
    awaited = Q(pk__in=ids) & Q(IsHeld("pk"))
    found = Job.all_objects.filter(children | living | awaited)
    return list(found.only("name", "status", "parent")[:NAMED])


def _bounded(rows: QuerySet[Any]) -> str:
    number = rows.values("pk")[: MOST_COUNTED + 1].count()
    if number > MOST_COUNTED:
        return gettext("more than %(most)d") % {"most": MOST_COUNTED}
    return str(number)
