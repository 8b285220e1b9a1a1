"""Rows of users' models that point to jobs: what `on_delete` says of them when the jobs go."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any
from uuid import UUID

from django.db import connections, models
from django.db.models.deletion import Collector, ProtectedError, get_candidate_relations_to_delete

from django_durable.models import Attempt, DeadLetter, Job, Signal, Step

BATCH = 1000
_candidates: Any = get_candidate_relations_to_delete


def users_keys(alias: str) -> Iterator[tuple[Any, str]]:
    """Name the foreign keys of users' models to what goes with a job, and the way to the job."""
    own: tuple[Any, ...] = (Job, DeadLetter, Attempt, Step, Signal)
    fields = [(each.field, model) for model in own for each in _candidates(model._meta)]
    keys = [
        (field, field.name if model is Job else f"{field.name}__job")
        for field, model in fields
        if field.model._meta.app_label != Job._meta.app_label
        and field.remote_field.on_delete is not models.DO_NOTHING
    ]
    # With a database of their own for the jobs, the others' tables may not be there.
    present = set(connections[alias].introspection.table_names()) if keys else ()
    return ((field, way) for field, way in keys if field.model._meta.db_table in present)


def pointing_rows(jobs: models.QuerySet[Job]) -> Iterator[tuple[Any, Any]]:
    """Return the foreign keys of users' models, each with the rows to delete or to ask first."""
    for field, way in users_keys(jobs.db):
        if not getattr(field.remote_field.on_delete, "lazy_sub_objs", False):
            rows = field.model._base_manager.using(jobs.db)
            yield field, rows.filter(**{f"{way}__in": jobs.values("pk")})


def let_go(jobs: Sequence[UUID], alias: str) -> dict[str, int]:
    """Do to the rows that point to these jobs what their `on_delete` says, as Django would.

    To be called in the transaction that deletes the jobs, before that. Returns the counts of what
    was deleted, by model. Raises `ProtectedError`.
    """
    collector = Collector(using=alias)
    for field, way in users_keys(alias):
        for start in range(0, len(jobs), BATCH):
            batch = jobs[start : start + BATCH]
            rows = field.model._base_manager.using(alias).filter(**{f"{way}__in": batch})
            on_delete = field.remote_field.on_delete
            if getattr(on_delete, "lazy_sub_objs", False) or rows:
                on_delete(collector, field, rows, alias)
    _refuse_restricted(collector)
    counts: dict[str, int] = collector.delete()[1]
    return counts


def _refuse_restricted(collector: Any) -> None:
    """Raise for what is restricted and does not go along by another key."""
    for model, rows in collector.data.items():
        collector.clear_restricted_objects_from_set(model, rows)
    for rows in collector.fast_deletes:
        collector.clear_restricted_objects_from_queryset(rows.model, rows)
    for by_field in collector.restricted_objects.values():
        for field, rows in by_field.items():
            if rows:
                raise ProtectedError(
                    "rows point to the jobs through a restricted foreign key:"
                    f" '{field.model.__name__}.{field.name}'",
                    set(rows),
                )
