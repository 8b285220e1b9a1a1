"""The settings of the workers that the suite starts: the test project's, and job types to run."""

from datetime import timedelta

from testproject.settings import *  # noqa: F403
from testproject.settings import INSTALLED_APPS, env

# A worker without the code of the jobs is one of the cases.
if env.bool("WITH_JOBS", default=True):
    INSTALLED_APPS = [*INSTALLED_APPS, "tests.workerapp"]

# What a test says of this process it says in the environment.
DURABLE_NOTIFY = env.bool("DURABLE_NOTIFY", default=True)
DURABLE_POLL_INTERVAL = timedelta(seconds=env.float("DURABLE_POLL_INTERVAL", default=1.0))
