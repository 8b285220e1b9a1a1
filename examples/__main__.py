"""Run an example: `python -m examples NAME`, or without a name for a list of them."""

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
    if len(sys.argv) != 2 or sys.argv[1] not in names:
        print(__doc__, *sorted(names), sep="\n  ")
        return 2

    # So that its workers end with it, as they do at a Ctrl-C.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))

    import django
    from django.core.management import call_command

    django.setup()
    call_command("migrate", verbosity=0)
    import_module(f"examples.{sys.argv[1]}").main()
    return 0


if __name__ == "__main__":
    sys.exit(main())
