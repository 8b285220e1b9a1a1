"""What one job's page offers beyond the actions: signals, forks, new jobs, checkpoints."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client, override_settings

from django_durable import JobContext, job, workflow
from django_durable.admin import job_page
from django_durable.models import Job
from tests.admin.conftest import StaffMaker
from tests.admin.world import (
    ESCAPED,
    SCRIPT,
    SECRET,
    charge,
    dead,
    delayed,
    hand,
    logged,
    running,
    successful,
    told,
    url,
)
from tests.workflows.driving import go

pytestmark = pytest.mark.django_db


@workflow(name="shown.flow", queue_name="shown")
def flow(context: JobContext, *words: Any) -> Any:
    """Have checkpoints of each sort."""
    context.step("first", str, words[0] if words else SECRET)
    context.step(SCRIPT, str, SCRIPT)
    return context.wait_for_signal("approval")


def parked(*words: Any) -> Job:
    job = flow.enqueue(*words)
    go(flow)
    return Job.objects.get(pk=job.pk)


def page(client: Client, name: str, job: Job) -> str:
    answer = client.get(url(name, job.pk))
    assert answer.status_code == 200
    return answer.content.decode()


def post(client: Client, page_name: str, job: Job, /, **fields: Any) -> Any:
    return client.post(url(page_name, job.pk), {"confirm": "yes", **fields})


class TestSignal:
    def test_it_is_asked_for_then_sent_and_recorded(self, root: Client) -> None:
        job = parked()
        text = page(root, "signal", job)
        assert 'name="name" value="approval"' in text
        assert root.post(url("signal", job.pk), {"name": "approval"}).status_code == 200
        assert not job.signals.exists()
        done = post(root, "signal", job, name="approval", payload='{"by": ["Ada", 1.5]}')
        assert told(done) == [("success", "The signal was sent.")]
        assert done.url == url("change", job.pk)
        assert job.signals.get().payload == {"by": ["Ada", 1.5]}
        assert logged() == [(str(job.pk), "Sent the signal “approval”")]

    def test_without_a_payload_it_is_none(self, root: Client) -> None:
        job = delayed()
        post(root, "signal", job, name="go")
        assert job.signals.get().payload is None

    @pytest.mark.parametrize(
        ("fields", "said"),
        [
            ({"name": ""}, "This field is required"),
            ({"name": "n" * 256}, "at most 255 characters"),
            ({"name": "go", "payload": "{"}, "Write JSON such as"),
            ({"name": "go", "payload": "NaN"}, "Write JSON such as"),
            ({"name": "go", "payload": SCRIPT}, ESCAPED),
        ],
    )
    def test_what_can_not_be_sent_is_an_error_of_the_form(
        self, root: Client, fields: dict[str, str], said: str
    ) -> None:
        job = delayed()
        answer = post(root, "signal", job, **fields)
        assert answer.status_code == 200
        assert said in answer.content.decode()
        assert SCRIPT not in answer.content.decode()
        assert not job.signals.exists()
        assert not logged()

    def test_a_job_that_has_ended_takes_none(self, root: Client) -> None:
        job = successful()
        assert "There is nothing to do." in page(root, "signal", job)
        post(root, "signal", job, name="go")
        assert not job.signals.exists()
        assert url("signal", job.pk) not in page(root, "change", job)


class TestFork:
    def test_afresh(self, root: Client) -> None:
        job = dead(41, currency="EUR")
        assert "&quot;currency&quot;" in page(root, "fork", job)
        form = root.get(url("fork", job.pk)).context["form"]
        same = {name: form[name].value() for name in ("args", "kwargs")}
        done = post(root, "fork", job, from_step="", **same)
        new = Job.objects.exclude(pk=job.pk).get()
        assert (new.args, new.kwargs, new.status) == ([41], {"currency": "EUR"}, "READY")
        assert url("change", new.pk) in told(done)[-1][1]
        assert logged() == [(str(job.pk), f"Forked as job {new.pk}")]

    def test_from_a_step_with_what_was_earned_before(self, root: Client) -> None:
        job = parked("one")
        text = page(root, "fork", job)
        assert "at “first”" in text
        assert "at “approval”" not in text
        form = root.get(url("fork", job.pk)).context["form"]
        same = {name: form[name].value() for name in ("args", "kwargs")}
        post(root, "fork", job, from_step=SCRIPT, **same)
        new = Job.objects.exclude(pk=job.pk).get()
        assert [step.name for step in new.steps.all()] == ["first"]

    @override_settings(DURABLE_DROP_COMPLETED_PAYLOADS=True)
    def test_arguments_that_were_dropped_are_asked_for(
        self, root: Client, staff: StaffMaker
    ) -> None:
        charge.enqueue("4711")
        by = hand()
        job = by.succeed(by.take())
        assert (job.args, job.kwargs) == ([], {})
        for verb in ("fork", "enqueue"):
            assert "Dropped as the job succeeded" in page(root, verb, job)
        post(root, "fork", job, args='["4712"]', kwargs="{}")
        new = Job.objects.exclude(pk=job.pk).get()
        assert (new.args, new.kwargs) == (["4712"], {})
        # Who may not see the arguments can't give them.
        client = staff("view_job", "fork_job", "enqueue_job")
        assert "were dropped" in post(client, "fork", job).content.decode()
        fields = {"queue_name": "default", "priority": "0"}
        assert "can&#x27;t be read" in post(client, "enqueue", job, **fields).content.decode()
        assert Job.objects.count() == 2

    def test_with_other_arguments(self, root: Client) -> None:
        job = dead(41)
        post(root, "fork", job, args="[42]", kwargs='{"note": "again"}')
        new = Job.objects.exclude(pk=job.pk).get()
        assert (new.args, new.kwargs) == ([42], {"note": "again"})

    @pytest.mark.parametrize(
        ("fields", "said"),
        [({"args": "{}"}, "Write JSON"), ({"args": "[]", "from_step": "none"}, "valid choice")],
    )
    def test_what_does_not_fit_is_an_error_of_the_form(
        self, root: Client, fields: dict[str, str], said: str
    ) -> None:
        job = dead(41)
        answer = post(root, "fork", job, **fields)
        assert said in answer.content.decode()
        assert Job.objects.count() == 1


class TestEnqueue:
    def test_a_new_job_like_this_one(self, root: Client) -> None:
        job = dead(41)
        form = root.get(url("enqueue", job.pk)).context["form"]
        same = {name: form[name].value() for name in ("args", "kwargs", "queue_name", "priority")}
        done = post(root, "enqueue", job, **same)
        new = Job.objects.exclude(pk=job.pk).get()
        assert (new.name, new.queue_name, new.args) == (job.name, job.queue_name, [41])
        assert (new.status, new.attempt, new.idempotency_key) == ("READY", 0, None)
        assert url("change", new.pk) in told(done)[-1][1]
        assert logged() == [(str(job.pk), f"Enqueued again as job {new.pk}")]

    def test_elsewhere_later_and_with_other_arguments(self, root: Client) -> None:
        job = running()
        given = {"queue_name": "other", "priority": "7", "delay": "2h", "args": "[1]"}
        post(root, "enqueue", job, **given)
        new = Job.objects.exclude(pk=job.pk).get()
        assert (new.queue_name, new.priority, new.args) == ("other", 7, [1])
        assert new.run_after - new.enqueued_at > timedelta(hours=1.9)

    @pytest.mark.parametrize(
        ("fields", "said"),
        [
            ({"priority": "101"}, "less than or equal to 100"),
            ({"queue_name": ""}, "This field is required"),
            ({"delay": "soon"}, "Enter a valid duration"),
            ({"kwargs": '{"currency": '}, "Write JSON"),
        ],
    )
    def test_what_is_wrong_is_an_error_of_the_form(
        self, root: Client, fields: dict[str, str], said: str
    ) -> None:
        job = dead()
        answer = post(root, "enqueue", job, **{"queue_name": "q", "priority": "0", **fields})
        assert said in answer.content.decode()
        assert Job.objects.count() == 1

    def test_a_call_that_does_not_fit_the_function_is_one_too(self, root: Client) -> None:
        job = strict_job()
        answer = post(root, "enqueue", job, queue_name="q", priority="0", args="[1, 2, 3]")
        assert answer.status_code == 200
        assert "too many positional arguments" in answer.content.decode()
        assert Job.objects.count() == 1

    def test_a_job_type_that_this_process_does_not_know_is_not_offered(self, root: Client) -> None:
        job = dead()
        Job.objects.update(name="gone")
        assert url("enqueue", job.pk) not in page(root, "change", job)
        post(root, "enqueue", job, queue_name="q", priority="0")
        assert Job.objects.count() == 1


def strict_job() -> Job:
    from django_durable import job as job_type

    @job_type(name="shown.strict", queue_name="shown")
    def strict(only: int) -> None:
        """Take one argument."""

    return strict.enqueue(1)


@pytest.mark.parametrize("lacking", ["edit_payload", "view_payload"])
@pytest.mark.parametrize("name", ["fork", "enqueue"])
def test_arguments_are_neither_shown_nor_taken_without_both_permissions(
    staff: StaffMaker, name: str, lacking: str
) -> None:
    job = dead(SECRET)
    client = staff(
        *{"view_job", "fork_job", "enqueue_job", "edit_payload", "view_payload"} - {lacking}
    )
    text = page(client, name, job)
    assert SECRET not in text
    assert 'name="args"' not in text
    post(client, name, job, args='["mine"]', queue_name="q", priority="0")
    new = Job.objects.exclude(pk=job.pk).get()
    assert new.args == [SECRET]


class TestCheckpoints:
    def test_steps_and_signals_are_on_the_page_in_their_order_and_escaped(
        self, root: Client
    ) -> None:
        job = parked("one")
        job.signal("note", {"from": SCRIPT})
        text = page(root, "change", job)
        assert text.index(">first<") < text.index(f">{ESCAPED}<") < text.index(">approval<")
        assert SCRIPT not in text
        assert "&quot;one&quot;" in text
        assert ">note<" in text
        assert text.count(ESCAPED) >= 3

    def test_values_and_payloads_need_view_payload(self, staff: StaffMaker) -> None:
        job = parked()
        job.signal("note", SECRET)
        hidden = page(staff("view_job"), "change", job)
        assert SECRET not in hidden
        assert ">first<" in hidden
        assert ">note<" in hidden
        assert page(staff("view_job", "view_payload"), "change", job).count(SECRET) >= 2

    def test_of_many_only_the_first_are_shown(
        self, root: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(job_page, "MAX_STEPS", 1)
        text = page(root, "change", parked())
        assert "Only the first 1 are shown." in text
        assert ">approval<" not in text

    def test_a_plain_job_has_no_such_section(self, root: Client) -> None:
        text = page(root, "change", charge.enqueue())
        assert "durable-steps" not in text
        assert "durable-signals" not in text

    def test_a_child_shows_its_job_in_place_of_a_value(self, root: Client) -> None:
        job = bearing.enqueue()
        go(bearing)
        (row,) = root.get(url("change", job.pk)).context["steps"]
        assert str(job.children.get().pk) in row["child"]
        assert row["value"] == ""

    def test_a_failed_step_shows_its_error(self, root: Client) -> None:
        job = failing.enqueue()
        go(failing)
        assert "PermanentFailure: no way" in page(root, "change", job)


@workflow(name="shown.bearing", queue_name="shown")
def bearing(context: JobContext) -> None:
    """Have a child."""
    context.start("kid", charge)


@workflow(name="shown.failing", queue_name="shown")
def failing(context: JobContext) -> None:
    """Have a step that fails for good."""
    from django_durable import PermanentFailure

    def fail() -> None:
        raise PermanentFailure("no way")

    context.step("fail", fail)


def refuse(kind: str) -> str:
    raise {"key": KeyError, "value": ValueError}[kind](SECRET)


@job(name="shown.refused", concurrency_key=refuse)
def refused(kind: str) -> None:
    """Have a key that can't be made."""


@pytest.mark.parametrize(("kind", "name"), [("key", "KeyError"), ("value", "ValueError")])
def test_what_users_code_raises_for_a_new_job_is_said_to_whoever_may_see_it(
    staff: StaffMaker, kind: str, name: str
) -> None:
    row = refused.using(concurrency_key="other").enqueue(kind)
    for more in ([], ["view_payload"]):
        client = staff("view_job", "enqueue_job", *more)
        answer = post(client, "enqueue", row, queue_name="q", priority="0")
        assert answer.status_code == 200
        assert name in answer.content.decode()
        assert (SECRET in answer.content.decode()) == bool(more)
    assert Job.objects.count() == 1
