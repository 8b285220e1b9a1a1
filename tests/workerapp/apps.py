"""The app: a worker that is given a folder notes the Django signals of the package in it.

One that is to die at a commit, by `DURABLE_FAULT`, names the thread: `COMMIT in recorder` just
before it, `COMMITTED in recorder` just after.
"""

import gc
import os
import threading

from django.apps import AppConfig
from django.db.backends.base.base import BaseDatabaseWrapper

from django_durable import faults


class WorkerAppConfig(AppConfig):
    name = "tests.workerapp"
    label = "workerapp"

    def ready(self) -> None:
        folder = os.environ.get("SIGNAL_NOTES")
        if folder:
            from tests.workerapp.receivers import note_signals

            note_signals(folder)
        if garbage_at := os.environ.get("GARBAGE_AT"):
            gc.set_threshold(int(garbage_at))
        if os.environ.get("DURABLE_FAULT", "").startswith("COMMIT"):
            commit = BaseDatabaseWrapper._commit

            def reach_commit(self: BaseDatabaseWrapper) -> None:
                thread = threading.current_thread().name
                faults.reach(f"COMMIT in {thread}")
                commit(self)
                faults.reach(f"COMMITTED in {thread}")

            BaseDatabaseWrapper._commit = reach_commit  # type: ignore[method-assign]
