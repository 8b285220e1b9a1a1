"""Notes that jobs leave in a folder, whole lines also when the writer is killed."""

import json
import os
import threading
import time
from pathlib import Path
from typing import Any


class Notes:
    """Note what happens, and wait for a test to say go."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    def add(self, event: str, **data: Any) -> None:
        """Add a line in one system call; the clock is the machine's, the same in all processes."""
        line = {"event": event, "pid": os.getpid(), "at": time.monotonic(), **data}
        file = os.open(self.folder / "notes", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(file, json.dumps(line, default=str).encode() + b"\n")
        finally:
            os.close(file)

    @staticmethod
    def now() -> float:
        """Return the moment by the clock of the notes."""
        return time.monotonic()

    def read(self, event: str | None = None, **data: Any) -> list[dict[str, Any]]:
        """Return the notes, or those of one event with this data."""
        path = self.folder / "notes"
        lines = path.read_text().splitlines() if path.exists() else []
        notes = [json.loads(line) for line in lines]
        return [
            note
            for note in notes
            if (event is None or note["event"] == event)
            and all(note.get(key) == value for key, value in data.items())
        ]

    def let_go(self, label: str = "all") -> None:
        """Let the jobs of this label go on, or all of them."""
        (self.folder / f"go-{label}").touch()

    def may_go(self, label: str) -> bool:
        """Tell whether the jobs of this label may go on."""
        return any((self.folder / f"go-{name}").exists() for name in (label, "all"))

    def wait_to_go(self, label: str) -> None:
        """Wait until a job of this label may go on."""
        while not self.may_go(label):
            threading.Event().wait(0.01)

    def wait_for_end_of_copy(self) -> None:
        """Wait until the process that this one has forked and noted has ended."""
        os.waitpid(self.read("forked")[-1]["child"], 0)
