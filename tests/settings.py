"""The settings of the workers that the suite starts: little to load, and job types to run."""

from datetime import timedelta

from testproject.settings import *  # noqa: F403
from testproject.settings import DATABASES, env

# A worker needs no admin, and starts the sooner without it.
INSTALLED_APPS = ["django.contrib.auth", "django.contrib.contenttypes", "django_durable"]
MIDDLEWARE: list[str] = []
TEMPLATES: list[dict[str, object]] = []
ROOT_URLCONF = "tests.workerapp.urls"

# A worker without the code of the jobs is one of the cases.
if env.bool("WITH_JOBS", default=True):
    INSTALLED_APPS = [*INSTALLED_APPS, "tests.workerapp"]

# What a test says of this process it says in the environment.
if env.str("DIRECT_DATABASE_URL", default=""):
    # A way past a pooler, for notifications.
    DATABASES = {**DATABASES, "direct": env.db_url("DIRECT_DATABASE_URL")}
    DURABLE_LISTEN_DATABASE = "direct"
DURABLE_NOTIFY = env.bool("DURABLE_NOTIFY", default=True)
DURABLE_POLL_INTERVAL = timedelta(seconds=env.float("DURABLE_POLL_INTERVAL", default=1.0))
