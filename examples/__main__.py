"""Run an example: `.venv/bin/python -m examples NAME` from the checkout, after `make venv`."""

import difflib
import os
import signal
import sys
from importlib import import_module
from pathlib import Path
from uuid import uuid4


def main() -> int:
    """Prepare the database, and let the example tell its story."""
    os.environ["DJANGO_SETTINGS_MODULE"] = "examples.settings"
    os.environ.setdefault("EXAMPLES_QUEUE", f"examples-{uuid4()}")
    folder = Path(__file__).parent
    own = {"demo", "jobs", "settings"}
    names = {path.stem for path in folder.glob("[a-z]*.py")} - own
    match sys.argv[1:]:
        case [name] if name in names:
            pass
        case [name]:
            near = difflib.get_close_matches(name, names, n=1)
            print(f"There is no example {name!r}.", *(f"Did you mean {each}?" for each in near))
            return usage(names)
        case _:
            return usage(names)

    # So that its workers end with it, as they do at a Ctrl-C.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))

    import django
    from django.core.management import call_command

    django.setup()
    call_command("migrate", verbosity=0)
    import_module(f"examples.{name}").main()
    return 0


def usage(names: set[str]) -> int:
    """Say how an example is run, and which there are; return the exit code for wrong usage."""
    print(__doc__, *sorted(names), sep="\n  ")
    return 2


if __name__ == "__main__":
    sys.exit(main())
