"""The settings of the workers that the suite starts: little to load, and job types to run."""

from datetime import timedelta

from testproject.settings import *  # noqa: F403
from testproject.settings import env

# A worker needs no admin, and starts the sooner without it.
INSTALLED_APPS = ["django.contrib.auth", "django.contrib.contenttypes", "django_durable"]
MIDDLEWARE: list[str] = []
TEMPLATES: list[dict[str, object]] = []
ROOT_URLCONF = "tests.workerapp.urls"

# A worker without the code of the jobs is one of the cases.
if env.bool("WITH_JOBS", default=True):
    INSTALLED_APPS = [*INSTALLED_APPS, "tests.workerapp"]

# What a test says of this process it says in the environment.
DURABLE_NOTIFY = env.bool("DURABLE_NOTIFY", default=True)
DURABLE_POLL_INTERVAL = timedelta(seconds=env.float("DURABLE_POLL_INTERVAL", default=1.0))
