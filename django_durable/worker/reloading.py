"""The watch over source files, for development: changed code gets new children."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from pathlib import Path

from django.utils.autoreload import StatReloader, iter_all_python_module_files

LOOK_EVERY = 1.0


class Watcher:
    """Tell whether a module of the project has changed since the last question."""

    def __init__(self) -> None:
        self._reloader = StatReloader()
        self._seen: dict[Path, float] = dict(self._reloader.snapshot_files())

    def add(self, files: Iterable[str]) -> None:
        """Watch over what a child has imported, too: jobs import as they run, in children only."""
        self._reloader.extra_files.update(map(Path, files))

    def has_changed(self) -> bool:
        """Return True once for each change of a file that was imported here, or added."""
        now = dict(self._reloader.snapshot_files())
        # A file that has just been imported is not a change.
        changed = any(
            path in self._seen and self._seen[path] != moment for path, moment in now.items()
        )
        self._seen = {**self._seen, **now}
        return changed


class Imports:
    """Tell what a child has imported since the last question, for its supervisor's watcher."""

    def __init__(self) -> None:
        self._count = 0
        self._looked_at = 0.0
        self._told: frozenset[Path] = frozenset()

    def new_files(self) -> list[str]:
        """Return the files of modules that have come; looks seldom, and only at a new number."""
        now, count = time.monotonic(), len(sys.modules)
        if count == self._count or now - self._looked_at < LOOK_EVERY:
            return []
        self._looked_at = now
        try:
            files = iter_all_python_module_files()
        except KeyError:
            # An import that failed just now has taken its module back.
            return []
        new = files - self._told
        self._count, self._told = count, self._told | new
        return [str(path) for path in new]
