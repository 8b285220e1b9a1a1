"""Which queues and job types there are: a name that nothing has is most likely a misspelt one."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from django_durable.conf import conf
from django_durable.inspection.counting import declared_queues, queue_counts
from django_durable.jobtypes import registry
from django_durable.models import Job, Queue

# How many of the known names a sentence lists.
LISTED = 20


def unlasting_queues(names: Sequence[str]) -> list[str]:
    """Return those of the queues that nothing but jobs may name, which retention deletes."""
    lasting = _named_by_code() | set(Queue.objects.values_list("name", flat=True))
    return [name for name in names if name not in lasting]


def unknown_queues(names: Sequence[str]) -> list[str]:
    """Return a sentence on each of the queues that no job type, setting, row or job names.

    One that nothing names may cost a walk through all the jobs.
    """
    doubtful = unlasting_queues(names)
    if not doubtful:
        return []
    known = _named_by_code() | {counts.name for counts in queue_counts(limit=1)}
    return [
        f"No job type, job or row names the queue {name!r}{_hint(name, known)}"
        for name in doubtful
        if name not in known and not Job.all_objects.filter(queue_name=name).exists()
    ]


def unknown_job_types(names: Sequence[str]) -> list[str]:
    """Return a sentence on each of the names that no job type of this code and no job has."""
    doubtful = [name for name in names if registry.find(name) is None]
    return [
        f"No job type and no job is called {name!r}{_hint(name, set(registry.names()))}"
        for name in doubtful
        if not Job.all_objects.filter(name=name).exists()
    ]


def _named_by_code() -> set[str]:
    """Return the queues of job types, and those of jobs that no type names one for."""
    return declared_queues() | {"default", conf.defaults.get("queue_name", "default")}


def _hint(name: str, known: set[str]) -> str:
    near = difflib.get_close_matches(name, sorted(known), n=1)
    if near:
        return f"; did you mean {near[0]!r}?"
    more = ", ..." if len(known) > LISTED else ""
    return f"; known: {', '.join(sorted(known)[:LISTED])}{more}."
