"""The pages of the Django admin: jobs, attempts, dead letters, schedules, queues and workers.

They read the tables with bounded queries and act through `operations.py`. The classes are
registered with the default site; `site.register(Job, JobAdmin)` puts them on another.
"""

from django_durable.admin.attempts import AttemptAdmin
from django_durable.admin.dead_letters import DeadLetterAdmin
from django_durable.admin.jobs import JobAdmin
from django_durable.admin.queues import QueueAdmin
from django_durable.admin.schedules import ScheduleAdmin
from django_durable.admin.workers import WorkerAdmin
from django_durable.discovery import autodiscover

__all__ = [
    "AttemptAdmin",
    "DeadLetterAdmin",
    "JobAdmin",
    "QueueAdmin",
    "ScheduleAdmin",
    "WorkerAdmin",
]

# The filters offer the job types of this process, and retention goes by their options.
autodiscover()
