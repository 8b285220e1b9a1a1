"""The app: a worker that is given a folder notes the Django signals of the package in it.

One that is to die at a commit, by `DURABLE_FAULT`, names the thread: `COMMIT in recorder` just
before it, `COMMITTED in recorder` just after. One that has `FREEZE_AT` is stopped with its parent
at the named point, and first leaves a note.
"""

import gc
import os
import signal
import threading
from collections.abc import Callable

from django.apps import AppConfig
from django.db.backends.base.base import BaseDatabaseWrapper

from django_durable import faults
from django_durable.worker.options import OPTIONS_VARIABLE
from tests.workerapp.notes import Notes


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
        if point := os.environ.get("FREEZE_AT"):
            faults.hook = _freeze_at(point)
        if os.environ.get("DURABLE_FAULT", "").startswith("COMMIT"):
            commit = BaseDatabaseWrapper._commit

            def reach_commit(self: BaseDatabaseWrapper) -> None:
                thread = threading.current_thread().name
                faults.reach(f"COMMIT in {thread}")
                commit(self)
                faults.reach(f"COMMITTED in {thread}")

            BaseDatabaseWrapper._commit = reach_commit  # type: ignore[method-assign]


def _freeze_at(wanted: str) -> Callable[[str], None]:
    notes = Notes(os.environ["FREEZE_NOTES"])

    def freeze(point: str) -> None:
        is_child = OPTIONS_VARIABLE in os.environ
        if point == wanted and is_child and not notes.read("frozen"):
            notes.add("frozen")
            os.kill(os.getppid(), signal.SIGSTOP)
            os.kill(os.getpid(), signal.SIGSTOP)

    return freeze
