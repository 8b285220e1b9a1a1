"""Run the suite on pairs of Python and Django, each in an environment of its own.

usage: python matrix.py [--except PYTHON] PAIR... -- PYTEST_ARGS...

PAIR is `3.13+6.1`, or `oldest`, `newest` or `all`. A pair whose Python is not on this machine is
reported as skipped, and `newest` is then the newest one whose Python is there. With `--except`,
a pair that the environment of that interpreter is made of is left out.
"""

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent

# Python, Django: each Django with a Python of about its age.
PAIRS = [("3.11", "5.2"), ("3.12", "6.0"), ("3.13", "6.1"), ("3.14", "6.1")]


def find_python(version: str) -> Path | None:
    """Return an interpreter of that version, from the PATH or from pyenv's folder."""
    folders = [Path(folder) for folder in os.environ.get("PATH", "").split(os.pathsep) if folder]
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    if os.access(pyenv, os.R_OK | os.X_OK):
        folders += sorted(pyenv.glob(f"{version}.*/bin"), reverse=True)
    for folder in folders:
        program = shutil.which(f"python{version}", path=str(folder))
        # pyenv puts a program of each name on the PATH that refuses to run: ask it.
        if program and runs(program, version):
            return Path(program)
    return None


def runs(program: str, version: str) -> bool:
    code = "import ensurepip, sys; print('%d.%d' % sys.version_info[:2])"
    shown = subprocess.run([program, "-c", code], capture_output=True, text=True, check=False)
    return shown.stdout.strip() == version


def pair_of(python: str) -> tuple[str, str]:
    code = "import sys, django; print('%d.%d' % sys.version_info[:2], '%d.%d' % django.VERSION[:2])"
    shown = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    return tuple(shown.stdout.split())


def make_environment(python: Path, pair: tuple[str, str]) -> Path:
    """Return the interpreter of the pair's environment, made anew when pyproject.toml is newer."""
    version, django = pair
    folder = CHECKOUT / ".venvs" / f"py{version}-django{django}"
    own = folder / "bin" / "python"
    stamp = folder / ".stamp"
    project = CHECKOUT / "pyproject.toml"
    if not stamp.exists() or stamp.stat().st_mtime < project.stat().st_mtime:
        subprocess.run([python, "-m", "venv", "--clear", folder], check=True)
        install = [own, "-m", "pip", "install", "-qq"]
        subprocess.run([*install, "--upgrade", "pip>=25.1"], check=True)
        chosen = f"django=={django}.*"
        command = [*install, "--editable", ".", chosen, "--group", "test"]
        subprocess.run(command, cwd=CHECKOUT, check=True)
        stamp.touch()
    return own


def run(pair: tuple[str, str], pytest_args: list[str]) -> str:
    """Run the suite on a pair and return how that went, in a word."""
    version, django = pair
    python = find_python(version)
    if python is None:
        return f"skipped: no Python {version} here"
    print(f"== Python {version}, Django {django}", flush=True)
    own = make_environment(python, pair)
    done = subprocess.run([own, "-m", "pytest", *pytest_args], cwd=CHECKOUT, check=False)
    return "passed" if done.returncode == 0 else f"failed: exit status {done.returncode}"


def chosen_pairs(names: list[str]) -> list[tuple[str, str]]:
    here = [pair for pair in PAIRS if find_python(pair[0])] or PAIRS
    named = {"oldest": here[:1], "newest": here[-1:], "all": PAIRS}
    named |= {"+".join(pair): [pair] for pair in PAIRS}
    if unknown := set(names) - set(named):
        sys.exit(f"unknown pair: {', '.join(unknown)}; there are {', '.join(named)}")
    chosen = [pair for name in names for pair in named[name]]
    return [pair for pair in PAIRS if pair in chosen]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--except", dest="tested", metavar="PYTHON")
    parser.add_argument("pairs", nargs="+", metavar="PAIR")
    separator = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    options = parser.parse_args(sys.argv[1:separator])
    pairs = chosen_pairs(options.pairs)
    if options.tested:
        pairs = [pair for pair in pairs if pair != pair_of(options.tested)]
    results = {pair: run(pair, sys.argv[separator + 1 :]) for pair in pairs}
    for (version, django), result in results.items():
        print(f"Python {version}, Django {django}: {result}")
    sys.exit(any(result.startswith("failed") for result in results.values()))


if __name__ == "__main__":
    main()
