"""The tutorial does what it says: its files and commands, in their order, in an empty folder."""

from __future__ import annotations

import ast
import doctest
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

import psycopg
import pytest

DOCS = Path(__file__).parent.parent / "docs"
TUTORIAL = DOCS / "tutorial" / "index.md"

BLOCK = re.compile(
    r"^```(?:\{code-block\} )?(\w+)\n(?::caption: ([^\n]*)\n\n)?(.*?)^```$",
    re.DOTALL | re.MULTILINE,
)
# What the test has done for the reader, and what is for his eyes and hands.
DONE_ALREADY = [
    "mkdir bookshop",
    "cd bookshop",
    "python3 -m venv .venv",
    "source .venv/bin/activate",
    "python -m pip install 'django-durable-jobs[binary]'",
    "createdb bookshop",
    "python manage.py createsuperuser",
    "python manage.py runserver",
]
LOOSELY = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@dataclass
class Block:
    """One block of code of a page."""

    language: str
    caption: str
    text: str


def blocks(page: Path) -> list[Block]:
    return [Block(*found) for found in BLOCK.findall(page.read_text())]


def commands(text: str) -> Iterator[tuple[str, str]]:
    """Yield each command of a console block with the output that it is said to have."""
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, _, output = part.partition("\n")
        yield command, output


@pytest.fixture
def database() -> Iterator[dict[str, str]]:
    """A new database `bookshop`, as variables that libpq reads; it is dropped afterwards."""
    url = os.environ["DATABASE_URL"]
    parts = urlsplit(url)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("DROP DATABASE IF EXISTS bookshop WITH (FORCE)")
        connection.execute("CREATE DATABASE bookshop")
        yield {
            "PGHOST": parts.hostname or "",
            "PGPORT": str(parts.port or ""),
            "PGUSER": unquote(parts.username or ""),
            "PGPASSWORD": unquote(parts.password or ""),
        }
        connection.execute("DROP DATABASE bookshop WITH (FORCE)")


@dataclass
class Reader:
    """Do in a folder what a page says."""

    folder: Path
    environment: dict[str, str]

    def follow(self, page: Path) -> None:
        for block in blocks(page):
            if block.language == "console":
                for command, output in commands(block.text):
                    if command not in DONE_ALREADY:
                        self.run(command, output)
            else:
                self.write(block)

    def write(self, block: Block) -> None:
        name, _, where = block.caption.partition(", ")
        assert name, f"a block of {block.language} has no caption:\n{block.text}"
        path = self.folder / name
        if where:
            assert where == "at the end"
            with path.open("a") as file:
                file.write(block.text)
        else:
            path.write_text(block.text)

    def run(self, command: str, expected: str) -> None:
        done = subprocess.run(
            ["/bin/sh", "-c", command],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, f"$ {command}\n{done.stdout}"
        if expected:
            # Both as one paragraph: an empty line means something else to doctest.
            shown = "\n".join(line for line in done.stdout.splitlines() if line.strip()) + "\n"
            matches = doctest.OutputChecker().check_output(expected, shown, LOOSELY)
            assert matches, f"$ {command}\n{shown}\nthe page says:\n{expected}"


@pytest.mark.timeout(300)
def test_tutorial_works_from_the_first_command_to_the_last(
    tmp_path: Path, database: dict[str, str]
) -> None:
    environment = {
        **{name: os.environ[name] for name in os.environ if name.startswith(("COV", "LC_"))},
        **database,
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
        "HOME": str(tmp_path),
        "PYTHONUNBUFFERED": "1",
    }
    Reader(tmp_path, environment).follow(TUTORIAL)


@pytest.mark.parametrize(
    "page", sorted(DOCS.glob("*/*.md")), ids=lambda page: f"{page.parent.stem}-{page.stem}"
)
def test_python_of_every_page_is_python(page: Path) -> None:
    for block in blocks(page):
        if block.language == "python":
            compile(block.text, page.name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
