"""Contract, section 1: the names, and what importing them costs."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import metadata
from pathlib import Path

import pytest
from django.apps import apps
from django.dispatch import Signal
from django.urls import reverse

import django_durable
from django_durable import signals
from tests.contract.committed import python_on_the_test_database

DECORATORS = ["job", "workflow", "step", "schedule"]
VALUES = ["Backoff", "Priority", "OnDuplicate", "JobContext"]
INSTRUCTIONS = ["RetryJob", "PermanentFailure", "RejectJob", "CancelJob"]
STOPS = ["StopRun", "CancelRequested"]
ERRORS = [
    "DurableError",
    "JobFailed",
    "JobCancelled",
    "JobTimeout",
    "SignalTimeout",
    "LeaseLost",
    "AlreadyReplayed",
    "DuplicateJob",
    "DuplicateStep",
    "DepthExceeded",
    "PayloadError",
    "UnknownJob",
]
EVERY_NAME = [*DECORATORS, *VALUES, *INSTRUCTIONS, *STOPS, *ERRORS]


def python(code: str) -> str:
    """Run code in an interpreter that knows nothing of a Django project."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env={"PATH": ""},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", EVERY_NAME)
def test_name_is_imported_from_the_package(name: str) -> None:
    assert getattr(django_durable, name).__name__ == name
    assert name in django_durable.__all__
    assert name in dir(django_durable)


def test_name_that_does_not_exist_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'jobs_of_old'"):
        _ = django_durable.jobs_of_old


def test_import_needs_no_django_project_and_pulls_in_no_models() -> None:
    names = ", ".join(EVERY_NAME)
    assert (
        python(
            f"from django_durable import {names}\n"
            "import sys\n"
            "from django.conf import settings\n"
            "print('django_durable.models' in sys.modules, settings.configured)"
        )
        == "False False\n"
    )


def test_import_of_the_package_alone_leaves_the_run_of_jobs_out() -> None:
    assert (
        python(
            "import django_durable, sys\n"
            "print('django_durable.context' in sys.modules, 'psycopg' in sys.modules)"
        )
        == "False False\n"
    )


def test_job_types_are_defined_before_django_is_set_up() -> None:
    code = """
from datetime import timedelta
from django_durable import job, workflow, Backoff, Priority

@job(queue_name="mail", priority=Priority.HIGH, max_attempts=5, timeout=timedelta(minutes=2))
def send_receipt(order_id: int) -> str: ...

@workflow(backoff=Backoff(jitter=0))
def checkout(context, order_id): ...

print(send_receipt.name, checkout.name)
"""
    assert python(code) == "__main__.send_receipt __main__.checkout\n"


@pytest.mark.parametrize(
    "name", ["Job", "Attempt", "Step", "Signal", "DeadLetter", "Schedule", "Queue", "Worker"]
)
def test_model_is_in_the_app_durable(name: str) -> None:
    from django_durable import models

    model = getattr(models, name)
    assert model._meta.app_label == "durable"
    assert model._meta.db_table == f"durable_{name.lower()}"
    assert apps.get_model("durable", name) is model


@pytest.mark.parametrize(
    "name",
    [
        "job_enqueued",
        "job_started",
        "job_succeeded",
        "job_failed",
        "job_dead_lettered",
        "job_cancelled",
        "job_parked",
        "lease_lost",
        "step_recorded",
    ],
)
def test_signal_is_a_django_signal(name: str) -> None:
    assert isinstance(getattr(signals, name), Signal)


def test_distribution_and_admin_have_the_names_of_the_contract() -> None:
    assert metadata("django-durable-jobs")["Name"] == "django-durable-jobs"
    assert reverse("admin:durable_job_changelist") == "/admin/durable/job/"


@pytest.mark.parametrize("error", ERRORS)
def test_errors_of_the_package_share_a_base(error: str) -> None:
    assert issubclass(getattr(django_durable, error), django_durable.DurableError)


@pytest.mark.parametrize("stop", STOPS)
def test_what_ends_a_run_from_inside_is_no_exception(stop: str) -> None:
    assert issubclass(getattr(django_durable, stop), BaseException)
    assert not issubclass(getattr(django_durable, stop), Exception)
    assert issubclass(getattr(django_durable, stop), django_durable.StopRun)


@pytest.mark.parametrize("instruction", INSTRUCTIONS)
def test_instruction_of_a_job_is_no_error_of_the_package(instruction: str) -> None:
    assert issubclass(getattr(django_durable, instruction), Exception)
    assert not issubclass(getattr(django_durable, instruction), django_durable.DurableError)


FIND = """
import sys, django
from django.conf import settings
from testproject import settings as project

given = {name: value for name, value in vars(project).items() if name.isupper()}
settings.configure(**{**given, "INSTALLED_APPS": [*given["INSTALLED_APPS"], "an_app"]})
django.setup()
from django.core.management import CommandError, call_command
from django_durable.jobtypes import registry
"""
FINDERS = {
    "admin": "import django.contrib.admin; django.contrib.admin.autodiscover()",
    "durable": "call_command('durable', 'enqueue', 'an_app.jobs.one', stdout=sys.stderr)",
    "worker": "call_command('worker', '--batch', stdout=sys.stderr)",
}


@pytest.mark.usefixtures("committed")
@pytest.mark.parametrize("finder", FINDERS)
def test_jobs_and_tasks_of_every_app_are_found_by(finder: str, tmp_path: Path) -> None:
    package = tmp_path / "an_app"
    package.mkdir()
    (package / "__init__.py").touch()
    for module, function in (("jobs", "one"), ("tasks", "two")):
        code = f"from django_durable import job\n\n\n@job\ndef {function}():\n    pass\n"
        (package / f"{module}.py").write_text(code)
    find = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{FIND}{FINDERS[finder]}\n"
    process = python_on_the_test_database(find + "print(registry.names())")
    names, _ = process.communicate(timeout=60)

    assert process.returncode == 0
    assert "'an_app.jobs.one'" in names
    assert "'an_app.tasks.two'" in names
