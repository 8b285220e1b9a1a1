"""Check an installed wheel, in the environment that it is installed in.

usage: python -I check_wheel.py SOURCE (the package's folder in the checkout)
"""

import sys
from importlib import metadata
from pathlib import Path

DISTRIBUTION = "django-durable-jobs"
PACKAGE = "django_durable"


def missing_files(source: Path, installed: set[str]) -> list[str]:
    """Return the files of the checkout's package that the wheel has not brought."""
    here = (path for path in source.rglob("*") if path.is_file() and path.suffix != ".pyc")
    names = {f"{PACKAGE}/{path.relative_to(source)}" for path in here}
    return sorted(names - installed)


def check_import() -> None:
    """Import the package before Django is set up: that must bring in no models."""
    __import__(PACKAGE)
    if f"{PACKAGE}.models" in sys.modules:
        sys.exit(f"importing {PACKAGE} imports its models")


def check_django() -> None:
    """Run Django's system checks with a project that has little but the package."""
    import django
    from django.conf import settings
    from django.core.management import call_command

    settings.configure(
        SECRET_KEY="-",
        USE_TZ=True,
        DATABASES={"default": {"ENGINE": "django.db.backends.postgresql", "NAME": "none"}},
        INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes", PACKAGE],
    )
    django.setup()
    call_command("check", fail_level="WARNING")


def main() -> None:
    source = Path(sys.argv[1])
    installed = {str(path) for path in metadata.files(DISTRIBUTION) or []}
    if missing := missing_files(source, installed):
        sys.exit("not in the wheel:\n" + "\n".join(missing))
    check_import()
    package = Path(sys.modules[PACKAGE].__file__ or "").parent
    if package == source:
        sys.exit("this is the checkout, not the wheel")
    check_django()
    names = (name for name in installed if name.startswith(f"{PACKAGE}/"))
    data = sorted(name for name in names if not name.endswith((".py", ".pyc")))
    title = f"{DISTRIBUTION} {metadata.version(DISTRIBUTION)} brings, beside its modules:"
    print(title, *data, sep="\n  ")


if __name__ == "__main__":
    main()
