"""`manage.py durable signal` and `replay-check`, by their JSON, sentences and exit codes."""

from __future__ import annotations

import json
from contextlib import suppress
from io import StringIO
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.contrib.auth.models import Group
from django.core.management import CommandError, call_command
from django.db import connection, transaction
from django.test import override_settings

from django_durable import JobContext, PermanentFailure, job, operations, step, workflow
from django_durable.jobtypes import registry
from django_durable.models import DeadLetter, Job, Step
from tests.workflows.driving import AT_ONCE, HOUR, FlakyError, fresh, go, go_one, value_of

pytestmark = pytest.mark.django_db


def durable(*args: str) -> tuple[Any, str, int]:
    """Run a subcommand; return its document, what it says beside it, and its exit code."""
    out, err = StringIO(), StringIO()
    try:
        call_command("durable", *args, "--json", stdout=out, stderr=err)
    except CommandError as error:
        document = json.loads(out.getvalue()) if out.getvalue() else None
        return document, str(error), error.returncode
    return json.loads(out.getvalue()), err.getvalue().strip(), 0


def text_of(*args: str) -> str:
    """Run a subcommand for a person."""
    out = StringIO()
    call_command("durable", *args, "--no-color", stdout=out, stderr=StringIO())
    return out.getvalue()


# signal


@workflow(name="commands.wait")
def wait(context: JobContext) -> Any:
    """Wait for a word."""
    return context.wait_for_signal("word")


@pytest.mark.parametrize(
    ("flags", "payload"),
    [
        ((), None),
        (("--payload", '{"by": ["me", 1.0]}'), {"by": ["me", 1.0]}),
        (("--payload=-1",), -1),
    ],
)
def test_signal_sends_a_payload_to_the_job(flags: tuple[str, ...], payload: Any) -> None:
    job = wait.enqueue()
    go(wait)
    document, said, code = durable("signal", str(job.pk), "word", *flags)
    assert (document, said, code) == ({"delivered": True, "id": str(job.pk)}, "", 0)
    go(wait)
    assert value_of(job) == payload


def test_signal_to_a_job_that_has_ended_is_not_delivered() -> None:
    job = wait.enqueue()
    job.cancel()
    document, _said, code = durable("signal", str(job.pk), "word")
    assert (document["delivered"], code) == (False, 0)
    assert "has ended" in text_of("signal", str(job.pk), "word")
    assert job.signals.count() == 0


@pytest.mark.parametrize(
    ("args", "sentence", "code"),
    [
        ([str(uuid4()), "word"], "no job has the id", 1),
        (["me", "word"], "not the id of a job", 1),
        (["{job}", ""], "a signal's name must be", 1),
        (["{job}", "word", "--payload", "NaN"], "nan, which JSON does not have", 1),
    ],
)
def test_a_wrong_signal_is_a_sentence(args: list[str], sentence: str, code: int) -> None:
    job = wait.enqueue()
    answer = durable("signal", *(str(job.pk) if arg == "{job}" else arg for arg in args))
    assert answer[0] is None
    assert sentence in answer[1]
    assert answer[2] == code
    assert job.signals.count() == 0


@pytest.mark.parametrize("args", [["me", "word", "--payload", "yes"], ["me"]])
def test_wrong_usage_of_signal_is_refused(args: list[str]) -> None:
    with pytest.raises(CommandError, match=r"not JSON|required"):
        call_command("durable", "signal", *args)


# replay


def take_back(value: int) -> None:
    """Take nothing back."""


@step(compensate=take_back)
def give() -> int:
    """Give something that can be taken back."""
    return 1


@workflow(name="commands.give")
def giving(context: JobContext) -> None:
    """Give, and die."""
    context.step("give", give)
    raise PermanentFailure("refused")


@workflow(name="commands.die")
def dying(context: JobContext) -> None:
    """Die with nothing to take back."""
    raise PermanentFailure("refused")


def test_replay_of_all_leaves_out_what_is_being_taken_back_and_says_so() -> None:
    busy, other = giving.enqueue(), dying.enqueue()
    go_one(giving, dying)
    listed = durable("replay", "--all", "--dry-run")
    document, said, code = durable("replay", "--all")
    assert ([row["id"] for row in listed[0]], *listed[1:]) == ([str(other.pk)], said, code)
    assert ([row["id"] for row in document], code) == ([str(other.pk)], 0)
    undo = Job.objects.get(parent=busy)
    assert said == f"{busy.pk} can be replayed once its undo job {undo.pk} has ended"
    go(giving)
    document, said, code = durable("replay", "--all", "--name", "commands.give")
    assert ([row["id"] for row in document], said, code) == ([str(busy.pk)], "", 0)


def test_replay_by_id_of_what_is_being_taken_back_is_a_sentence() -> None:
    busy, other = giving.enqueue(), dying.enqueue()
    go_one(giving, dying)
    listed = durable("replay", str(busy.pk), str(other.pk), "--dry-run")
    document, said, code = durable("replay", str(busy.pk), str(other.pk))
    assert ([row["id"] for row in listed[0]], *listed[1:]) == ([str(other.pk)], said, code)
    assert ([row["id"] for row in document], code) == ([str(other.pk)], 1)
    assert said.startswith(f"{busy.pk} can be replayed once its undo job ")


def test_what_is_deleted_meanwhile_is_left_out_of_a_replay_of_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gone, other = dying.enqueue(), dying.enqueue()
    go(dying)
    replay = operations.replay

    def late(letter: DeadLetter, **options: Any) -> Job:
        if letter.job_id == gone.pk:
            fresh(gone).delete()
        return replay(letter, **options)

    monkeypatch.setattr(operations, "replay", late)
    document, said, code = durable("replay", "--all")
    assert ([row["id"] for row in document], said, code) == ([str(other.pk)], "", 0)


def test_a_signal_to_what_is_deleted_meanwhile_is_a_sentence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = dying.enqueue()
    go(dying)
    send = Job.signal

    def late(self: Job, *args: Any) -> bool:
        fresh(self).delete()
        return send(self, *args)

    monkeypatch.setattr(Job, "signal", late)
    document, said, code = durable("signal", str(job.pk), "word")
    assert (document, code) == (None, 1)
    assert said.endswith("is gone")


# replay-check


def deploy(func: Any) -> Any:
    """Make this the code of the job type `commands.flow`."""
    old = registry.find("commands.flow")
    if old is not None:
        registry.remove(old)
    return workflow(name="commands.flow", max_attempts=2, backoff=AT_ONCE)(func)


called: list[str] = []


@pytest.fixture
def parked() -> Job:
    """A job of the old code: a and b are done, it sleeps, and c is still to come."""

    def old(context: JobContext) -> None:
        context.step("a", called.append, "a")
        context.step("b", called.append, "b")
        context.sleep("night", HOUR)
        context.step("c", called.append, "c")

    flow = deploy(old)
    job: Job = flow.enqueue()
    go(flow)
    called.clear()
    return job


def check(*flags: str) -> tuple[list[tuple[str, str, str]], int]:
    """Return what a check finds, and its exit code."""
    document, said, code = durable("replay-check", *flags)
    if code:
        assert "finding" in said
    assert called == []
    return [(row["problem"], row["kind"], row["step"]) for row in document], code


@pytest.mark.usefixtures("parked")
def test_the_code_that_made_them_has_no_findings() -> None:
    assert check() == ([], 0)
    assert durable("replay-check")[1] == "1 history, no findings"


@pytest.mark.usefixtures("parked")
def test_a_step_that_is_new_behind_what_is_recorded_is_no_finding() -> None:
    def new(context: JobContext) -> None:
        context.step("a", called.append, "a")
        context.step("b", called.append, "b")
        context.sleep("night", HOUR)
        context.step("new", called.append, "new")

    deploy(new)
    assert check() == ([], 0)


def test_a_step_that_is_gone_is_not_reached(parked: Job) -> None:
    def new(context: JobContext) -> None:
        context.step("b", called.append, "b")
        context.sleep("night", HOUR)

    deploy(new)
    assert check() == ([("not_reached", "step", "a")], 1)
    document, said, _code = durable("replay-check")
    assert document[0]["job"] == str(parked.pk)
    assert document[0]["name"] == "commands.flow"
    assert said == "1 finding in 1 history"


@pytest.mark.usefixtures("parked")
def test_a_step_that_is_new_before_what_is_recorded_ends_the_history_there() -> None:
    def new(context: JobContext) -> None:
        context.step("a", called.append, "a")
        context.step("new", called.append, "new")
        context.step("b", called.append, "b")
        context.sleep("night", HOUR)

    deploy(new)
    assert check() == ([("not_reached", "step", "b")], 1)
    assert "came to step 'new' first" in durable("replay-check")[0][0]["text"]


@pytest.mark.usefixtures("parked")
def test_steps_in_another_order_are_found() -> None:
    def new(context: JobContext) -> None:
        context.step("b", called.append, "b")
        context.step("a", called.append, "a")
        context.sleep("night", HOUR)

    deploy(new)
    assert check() == ([("other_order", "step", "a")], 1)


@pytest.mark.usefixtures("parked")
def test_a_checkpoint_of_another_kind_is_found() -> None:
    def new(context: JobContext) -> None:
        context.now("a")
        context.step("b", called.append, "b")

    deploy(new)
    assert ("other_kind", "step", "a") in check()[0]


@pytest.mark.usefixtures("parked")
def test_a_wait_under_way_that_is_of_another_kind_now_is_found() -> None:
    def new(context: JobContext) -> None:
        context.step("a", called.append, "a")
        context.step("b", called.append, "b")
        context.wait_for_signal("night")

    deploy(new)
    assert check() == ([("other_kind", "sleep", "night")], 1)


@pytest.mark.usefixtures("parked")
def test_a_wait_under_way_that_is_gone_is_not_reached() -> None:
    def new(context: JobContext) -> None:
        context.step("a", called.append, "a")
        context.step("b", called.append, "b")

    deploy(new)
    assert check() == ([("not_reached", "sleep", "night")], 1)


@pytest.mark.usefixtures("parked")
def test_a_wait_under_way_may_come_after_a_step_that_is_new() -> None:
    def new(context: JobContext) -> None:
        context.step("a", called.append, "a")
        context.step("b", called.append, "b")
        context.step("new", called.append, "new")
        context.sleep("night", HOUR)

    deploy(new)
    assert check() == ([], 0)


@pytest.mark.usefixtures("parked")
def test_code_that_fails_where_its_history_did_not_is_found() -> None:
    def new(context: JobContext) -> None:
        context.step("a", called.append, "a")
        raise FlakyError("changed")

    deploy(new)
    assert check()[0][0] == ("error", "", "")
    assert "FlakyError: changed" in durable("replay-check")[0][0]["text"]


def test_a_history_that_ended_in_an_error_ends_in_it_again() -> None:
    def fails(context: JobContext) -> None:
        context.step("a", called.append, "a")
        raise PermanentFailure("no use")

    flow = deploy(fails)
    flow.enqueue()
    go(flow)
    called.clear()
    assert check() == ([], 0)


def test_arguments_that_cannot_be_read_are_found(parked: Job) -> None:
    with connection.cursor() as cursor:
        cursor.execute("UPDATE durable_job SET kwargs = '[1' WHERE id = %s", [parked.pk])
    assert check() == ([("undecodable", "", "")], 1)


def test_nothing_is_written_whatever_the_code_does(parked: Job) -> None:
    def new(context: JobContext) -> None:
        context.step("a", called.append, "a")
        Group.objects.create(name="of the rehearsal")

    deploy(new)
    before = list(Step.objects.order_by("pk").values())
    # One finding, though it comes to nothing of what is recorded after that.
    assert check() == ([("write", "", "")], 1)
    assert "writes to the database outside a step" in durable("replay-check")[0][0]["text"]
    assert not Group.objects.exists()
    assert list(Step.objects.order_by("pk").values()) == before
    assert fresh(parked).status == "WAITING"
    # What comes after in the caller's transaction may be written again.
    Group.objects.create(name="afterwards")


def test_a_history_ends_at_a_write_whatever_the_function_makes_of_its_error(parked: Job) -> None:
    def new(context: JobContext) -> None:
        for _ in range(2):
            with suppress(Exception), transaction.atomic():
                Group.objects.create(name="of the rehearsal")
        context.step("new", called.append, "new")

    deploy(new)
    assert check() == ([("write", "", "")], 1)
    assert called == []


def test_every_verb_is_answered_from_what_is_recorded() -> None:
    @workflow(name="commands.leaf")
    def leaf(context: JobContext) -> int:
        return 2

    def every(context: JobContext) -> int:
        context.now("now")
        assert context.patched("patch")
        context.sleep("nothing", HOUR * 0)
        word = context.wait_for_signal("word")
        children = context.gather(context.start_many("leaf", leaf, [((), {})] * word))
        context.progress(1)
        context.check_cancelled()
        context.atomic_step("a", called.append, "a")
        return sum(children)

    flow = deploy(every)
    job = flow.enqueue()
    job.signal("word", 2)
    go(flow, leaf)
    assert value_of(job) == 4
    called.clear()
    assert check() == ([], 0)


def test_an_async_history_is_checked_too() -> None:
    async def old(context: JobContext) -> None:
        await context.astep("a", called.append, "a")
        await context.astep("b", called.append, "b")

    async def new(context: JobContext) -> None:
        await context.astep("a", called.append, "a")

    flow = deploy(old)
    flow.enqueue()
    go(flow)
    called.clear()
    assert check() == ([], 0)
    deploy(new)
    assert check() == ([("not_reached", "step", "b")], 1)


def test_filters_choose_the_histories(parked: Job) -> None:
    def new(context: JobContext) -> None:
        context.sleep("night", HOUR)

    deploy(new)
    assert check("--status", "SUCCESSFUL") == ([], 0)
    assert check("--name", "commands.wait") == ([], 0)
    assert len(check("--status", "WAITING", "--name", "commands.flow")[0]) == 2
    assert len(check("--limit", "1")[0]) == 2


def test_a_name_that_nothing_has_is_no_check_that_passes(parked: Job) -> None:
    document, said, code = durable("replay-check", "--name", "commands.flwo,commands.wait")
    assert (document, code) == ([], 1)
    assert said == (
        "No job type and no job is called 'commands.flwo'; did you mean 'commands.flow'?"
    )
    # A type that the code has no more, but jobs have.
    Job.objects.filter(pk=parked.pk).update(name="commands.gone")
    assert durable("replay-check", "--name", "commands.gone")[2] == 1


def test_a_limit_counts_histories(parked: Job) -> None:
    @job(name="commands.plain")
    def plain() -> None:
        pass

    # Older and newer ones without a history.
    plain.enqueue()
    Job.objects.filter(pk=plain.enqueue().pk).update(id=UUID(int=1), root_id=UUID(int=1))

    def new(context: JobContext) -> None:
        context.sleep("night", HOUR)

    deploy(new)
    findings, _said, code = durable("replay-check", "--limit", "1")
    assert ({one["job"] for one in findings}, code) == ({str(parked.pk)}, 1)


def test_what_has_dropped_its_arguments_is_left_out_and_said() -> None:
    def flow(context: JobContext, number: int) -> int:
        total: int = context.step("add", sum, [number, 1])
        return total

    with override_settings(DURABLE_DROP_COMPLETED_PAYLOADS=True):
        flow_type = deploy(flow)
        done = flow_type.enqueue(1)
        go(flow_type)
    assert value_of(done) == 2
    document, said, code = durable("replay-check")
    assert (document, code) == ([], 0)
    assert said.splitlines() == [
        "0 histories, no findings",
        "1 history left out: its arguments were dropped as it succeeded",
    ]


@pytest.mark.parametrize("new", ["commands.gone", "commands.plain"])
def test_a_live_history_that_no_workflow_goes_on_with_is_found(parked: Job, new: str) -> None:
    @job(name="commands.plain")
    def plain() -> None:
        pass

    Job.objects.filter(pk=parked.pk).update(name=new)
    findings, _said, code = durable("replay-check")
    assert code == 1
    assert [(one["job"], one["problem"], one["name"]) for one in findings] == [
        (str(parked.pk), "no_workflow", new)
    ]
    # What has ended needs no code.
    parked.cancel()
    document, said, code = durable("replay-check")
    assert (document, code) == ([], 0)
    assert "1 history left out: it has ended" in said


@pytest.mark.usefixtures("parked")
def test_a_person_sees_a_table() -> None:
    def new(context: JobContext) -> None:
        context.step("b", called.append, "b")
        context.sleep("night", HOUR)

    deploy(new)
    out = StringIO()
    with pytest.raises(CommandError):
        call_command("durable", "replay-check", stdout=out, stderr=StringIO(), no_color=True)
    assert "step 'a' is recorded, and not reached any more" in out.getvalue()
