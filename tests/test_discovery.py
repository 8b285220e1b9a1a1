"""Finding job types in the apps of the project."""

import sys

import pytest
from django.conf import settings as django_settings
from django.test import override_settings

from django_durable.discovery import autodiscover
from django_durable.jobtypes import registry


@pytest.fixture
def app(tmp_path, monkeypatch):
    """Install an app whose modules the test writes."""
    package = tmp_path / "an_app"
    package.mkdir()
    (package / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    known = set(registry.names())
    with override_settings(INSTALLED_APPS=[*django_settings.INSTALLED_APPS, "an_app"]):
        yield package
    for name in set(registry.names()) - known:
        registry.remove(registry.get(name))
    for name in [name for name in sys.modules if name.split(".")[0] == "an_app"]:
        del sys.modules[name]


def write(path, name):
    path.write_text(f"from django_durable import job\n\n@job(name={name!r})\ndef f(): ...\n")


def test_jobs_and_tasks_of_every_app_are_imported_once(app):
    write(app / "jobs.py", "an_app.one")
    write(app / "tasks.py", "an_app.two")
    autodiscover()
    found = registry.get("an_app.one"), registry.get("an_app.two")
    autodiscover()
    assert (registry.get("an_app.one"), registry.get("an_app.two")) == found


def test_apps_without_such_modules_are_passed_over(app):
    autodiscover()
    assert "an_app.jobs" not in sys.modules


def test_an_error_in_such_a_module_goes_up(app):
    (app / "jobs.py").write_text("import no_such_module_anywhere\n")
    with pytest.raises(ModuleNotFoundError, match="no_such_module_anywhere"):
        autodiscover()
