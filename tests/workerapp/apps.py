"""The app: a worker that is given a folder notes the Django signals of the package in it."""

import os

from django.apps import AppConfig


class WorkerAppConfig(AppConfig):
    name = "tests.workerapp"
    label = "workerapp"

    def ready(self) -> None:
        folder = os.environ.get("SIGNAL_NOTES")
        if folder:
            from tests.workerapp.receivers import note_signals

            note_signals(folder)
