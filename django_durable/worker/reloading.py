"""The watch over source files, for development: changed code gets new children."""

from __future__ import annotations

from pathlib import Path

from django.utils.autoreload import StatReloader


class Watcher:
    """Tell whether a module of the project has changed since the last question."""

    def __init__(self) -> None:
        self._reloader = StatReloader()
        self._seen: dict[Path, float] = dict(self._reloader.snapshot_files())

    def has_changed(self) -> bool:
        """Return True once for each change of a file that was imported here."""
        now = dict(self._reloader.snapshot_files())
        # A file that has just been imported is not a change.
        changed = any(
            path in self._seen and self._seen[path] != moment for path, moment in now.items()
        )
        self._seen = {**self._seen, **now}
        return changed
