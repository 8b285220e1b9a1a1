"""Loaded once by the server from which isolated runs are forked: the project, and no more."""

import json
import os
import sys

import django

from django_durable.worker.options import OPTIONS_VARIABLE, PATH_VARIABLE, WorkerOptions
from django_durable.worker.stopsignals import leave_stops_to_the_supervisor

leave_stops_to_the_supervisor()
# A job may have left the folder in which the project would be found.
sys.path[:] = json.loads(os.environ[PATH_VARIABLE])
django.setup()

from django_durable import store  # noqa: E402 - needs the apps
from django_durable.discovery import autodiscover  # noqa: E402 - needs the apps
from django_durable.logs import set_up_logging  # noqa: E402

_options = WorkerOptions.from_json(os.environ[OPTIONS_VARIABLE])
_options.apply_to_settings()
set_up_logging(_options)
store.end_idle_transactions_after(_options.lease_duration)
autodiscover()
