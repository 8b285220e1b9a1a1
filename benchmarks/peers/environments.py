"""The virtual environments of the peers, made when they are first needed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ENVIRONMENTS = HERE.parent.parent / ".venvs"


def make(name: str) -> Path:
    """Return the interpreter of a peer's environment, made anew when its requirements change.

    One that is left half made has no stamp, and is made anew too.
    """
    folder = ENVIRONMENTS / f"peer-{name}"
    requirements = HERE / f"requirements-{name}.txt"
    python = folder / "bin" / "python"
    stamp = folder / ".stamp"
    if not stamp.exists() or stamp.read_text() != requirements.read_text():
        stamp.unlink(missing_ok=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        install = ("install", "-qq", "-r", requirements)
        subprocess.run([python, "-m", "pip", *install], check=True, stdout=sys.stderr)
        stamp.write_text(requirements.read_text())
    return python


def version(name: str) -> str:
    """Return the pinned version of a peer, which its requirements name first."""
    first = (HERE / f"requirements-{name}.txt").read_text().splitlines()[0]
    return first.partition("==")[2]


def program(name: str) -> Path:
    """Return the peer's program."""
    return HERE / f"{name}_peer.py"
