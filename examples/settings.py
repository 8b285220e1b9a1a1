"""The settings of the test project, and the examples as an app with jobs."""

import os

from testproject.settings import *  # noqa: F403
from testproject.settings import INSTALLED_APPS

INSTALLED_APPS = [*INSTALLED_APPS, "examples"]

# A queue of this run's own, so that the workers of others don't take its jobs.
DURABLE_DEFAULTS = {"queue_name": os.environ.get("EXAMPLES_QUEUE", "examples")}
