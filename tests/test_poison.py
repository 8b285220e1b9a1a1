"""One row that can't be read or written, or one refusal of the system, stops nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import math
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from io import StringIO
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.db import connection
from django.db.models.expressions import RawSQL
from django.db.models.functions import Now
from django.urls import reverse

from django_durable import JobContext, inspection, job, operations, store, workflow
from django_durable.jobtypes import JobType, registry
from django_durable.models import DeadLetter, Job, Queue
from django_durable.signals import job_enqueued
from django_durable.store import Right, WorkerCard
from django_durable.worker.announcer import Announcer
from django_durable.worker.channel import Channel
from django_durable.worker.child import Child
from django_durable.worker.childprocess import Place
from django_durable.worker.claimtable import ClaimTable
from django_durable.worker.options import WorkerOptions
from django_durable.worker.renewer import Renewer
from django_durable.worker.runs import Run, Runs
from tests.by_hand import Hand, beat
from tests.contract.committed import elsewhere
from tests.contract.running import Runner
from tests.processes.harness import wait_for

pytestmark = pytest.mark.django_db(transaction=True)

# A rescue waits for a lease after the server's start.
OPTIONS = WorkerOptions("desk", lease=1.0)


def idle_runs() -> Runs:
    return Runs(ClaimTable.create(1), 1)


SECOND = timedelta(seconds=1)


def make_renewer(
    *,
    rights: Callable[[], list[Right]] = list,
    keep_apart: Callable[[list[UUID]], None] = lambda _jobs: None,
) -> Renewer:
    """Make a renewer whose loop does not run, of a worker that has no child."""
    return Renewer(
        OPTIONS,
        WorkerCard(uuid4(), "desk", "", 1, [], [], [], [], 2, SECOND),
        rights=rights,
        lost=lambda _right: None,
        cancelled=lambda _jobs: None,
        drain=lambda: None,
        announce=lambda _told: True,
        keep_apart=keep_apart,
    )


@pytest.fixture(autouse=True)
def _forget_job_types() -> Iterator[None]:
    before = set(registry.names())
    yield
    for name in set(registry.names()) - before:
        if (job_type := registry.find(name)) is not None:
            registry.remove(job_type)


@pytest.fixture
def async_work() -> JobType:
    """A job type for an event loop; a child knows it that is made after it."""

    @job(name="poison.async")
    async def work() -> None: ...

    return work


@pytest.fixture
def flow() -> JobType:
    """A workflow that sleeps; a child knows it that is made after it."""

    @workflow(name="poison.flow")
    def flow(context: JobContext) -> None:
        context.sleep("night", timedelta(hours=8))

    return flow


@pytest.fixture
def child() -> Iterator[Child]:
    """A child with two slots, whose loops don't run."""
    ours, theirs = socket.socketpair()
    table = ClaimTable.create(4)
    child = Child(OPTIONS, uuid4(), Channel(ours), table)
    child._runs.slots = 2
    yield child
    ours.close()
    theirs.close()
    table.close()


@pytest.fixture
def work() -> JobType:
    """A job type, of which two jobs are claimed."""

    @job(name="poison.work")
    def work() -> None: ...

    work.enqueue_many([((), {}), ((), {})])
    Runner(work).claim()
    return work


def test_a_hook_is_called_beside_one_whose_job_can_not_be_read() -> None:
    called: list[UUID] = []

    @job(
        name="poison.dying", max_attempts=1, on_dead_letter=lambda dead: called.append(dead.job_id)
    )
    def dying() -> None:
        raise ValueError

    bad, good = [dying.enqueue() for _ in range(2)]
    Runner(dying).run()
    # A number that PostgreSQL keeps and Python does not read.
    Job.objects.filter(pk=bad.pk).update(
        options=RawSQL("jsonb_build_object('timeout', repeat('9', 5000)::numeric)", [])
    )
    Announcer(OPTIONS, idle_runs()).loop._step()
    assert called == [good.pk]
    assert list(DeadLetter.objects.exclude(hook_due_at=None).values_list("job_id")) == [(bad.pk,)]


def test_a_rescue_takes_a_job_whose_place_in_the_order_is_no_moment(work: JobType) -> None:
    Job.objects.update(lease_until=Now() - SECOND)
    Job.objects.filter(pk=Job.objects.first().pk).update(  # type: ignore[union-attr]
        run_after=RawSQL("'-infinity'::timestamptz", [])
    )
    rescued = store.rescue(connection, operations.current_keep())
    assert len(rescued.failed) == 2
    assert {end.status for end in rescued.failed} == {"READY"}


def test_what_a_child_did_not_live_to_hear_of_counts_as_lost_with_it(work: JobType) -> None:
    apart: list[UUID] = []
    renewer = make_renewer(keep_apart=apart.extend)
    jobs = set(Job.objects.values_list("pk", flat=True))
    for expected in (set(), jobs):
        # No table lists them: their claims are in the database alone.
        claimer = Job.objects.values_list("claimer", flat=True).distinct().get()
        assert claimer is not None
        renewer.child_died(claimer, "it died")
        renewer.loop._step()
        renewer.loop._step()
        assert set(apart) == expected
        assert set(renewer.suspects()) == expected
        Runner(work).claim()
    assert len(apart) == len(jobs)


def test_what_timed_out_in_a_child_before_it_was_killed_is_suspect_with_the_others(
    work: JobType,
) -> None:
    apart: list[UUID] = []
    renewer = make_renewer(keep_apart=apart.extend)
    late, other = Job.objects.order_by("pk")
    for _ in range(2):
        late.refresh_from_db()
        assert late.claimer is not None
        renewer.time_out([(late.pk, late.epoch)])
        renewer.child_died(late.claimer, "it died", [late.pk])
        renewer.loop._step()
        Job.objects.filter(status="READY").update(due_at=Now() - SECOND, run_after=Now() - SECOND)
        Runner(work).claim()
    assert set(apart) == {late.pk, other.pk}


@pytest.mark.parametrize("verb", ["rescue", "record_failure", "release"])
def test_leases_are_renewed_beside_what_can_not_be_written(
    work: JobType, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise RuntimeError("a bug")

    bad, good = Job.objects.all()
    right = (good.pk, good.epoch)
    renewer = make_renewer(rights=lambda: [right])
    renewer.child_died(uuid4(), "it died")
    renewer.time_out([(bad.pk, bad.epoch)])
    renewer.give_back(uuid4())
    monkeypatch.setattr(store, verb, refuse)
    renewer.loop._step()
    assert Job.objects.get(pk=good.pk).lease_until != good.lease_until


@pytest.mark.parametrize("is_direct", [True, False], ids=["direct", "behind a pooler"])
def test_leases_are_renewed_beside_what_somebody_has_locked(work: JobType, is_direct: bool) -> None:
    locked, good = Job.objects.all()
    right = (good.pk, good.epoch)
    assert locked.claimer is not None
    renewer = make_renewer(rights=lambda: [right])
    renewer.time_out([(locked.pk, locked.epoch)])
    renewer.give_back(locked.claimer)

    def step() -> None:
        if not is_direct:
            connection.ensure_connection()
            connection.connection.durable_direct = False
        renewer.loop._step()

    with store.transaction():
        Job.objects.select_for_update().get(pk=locked.pk)
        stepping = threading.Thread(target=lambda: elsewhere(step))
        stepping.start()
        stepping.join(5)
        assert not stepping.is_alive()
        # The one that nobody has locked went back.
        good = elsewhere(lambda: Job.objects.get(pk=good.pk))
        assert good.status == "READY"
    renewer.loop._step()
    assert locked.attempts.get().outcome == "timed_out"


@pytest.mark.parametrize("verb", ["forget_dead", "cancel_late", "rescue"])
def test_claims_and_rescues_go_on_beside_what_can_not_be_written(
    work: JobType, child: Child, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    real, refused = getattr(store, verb), [RuntimeError("a bug")]

    def refuse_once(*args: Any, **named: Any) -> Any:
        if refused:
            raise refused.pop()
        return real(*args, **named)

    Job.objects.update(lease_until=Now() - SECOND)
    child._claimer._rescue_from = 0.0
    monkeypatch.setattr(child._claimer, "_start", lambda runs: [])
    monkeypatch.setattr(store, verb, refuse_once)
    child._claimer._step()
    assert not refused
    # What was rescued is claimed at once; a rescue that was refused comes a moment later.
    assert len(child._runs.rights()) == (0 if verb == "rescue" else 2)


def test_a_run_for_which_no_event_loop_can_be_had_is_given_back(
    async_work: JobType, child: Child, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    made = async_work.enqueue()
    monkeypatch.setattr(asyncio, "new_event_loop", refuse)
    with pytest.raises(RuntimeError, match="no thread"):
        child._claimer._step()
    assert not child._runs.rights()
    assert not child._runs.live()
    child._claimer._runs.slots = 0
    child._claimer._step()
    assert Job.objects.values_list("status", "attempt").get(pk=made.pk) == ("READY", 0)


def test_a_table_that_is_closed_holds_no_claims() -> None:
    table = ClaimTable.create(1)
    table.close()
    assert table.entries() == []


def test_a_child_that_can_not_be_started_is_tried_again_later(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    place = Place(OPTIONS)
    before = len(list(Path("/proc/self/fd").iterdir()))
    place.staff()
    place.staff()
    assert place.children() == []
    assert [record.message for record in caplog.records] == [
        "No child process can be started now: [Errno 11] Resource temporarily unavailable"
    ]
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.mark.parametrize(
    ("table", "column", "condition"),
    [("durable_step", "wake_at", "job_id"), ("durable_job", "run_after", "id")],
)
def test_a_moment_that_python_can_not_hold_keeps_none_from_a_claim(
    flow: JobType,
    child: Child,
    monkeypatch: pytest.MonkeyPatch,
    table: str,
    column: str,
    condition: str,
) -> None:
    bad, good = flow.enqueue(), flow.enqueue()
    Runner(flow).run()
    assert set(Job.objects.values_list("status", flat=True)) == {"WAITING"}
    with connection.cursor() as cursor:
        cursor.execute(
            f"UPDATE {table} SET {column} = '-infinity' WHERE {condition} = %s", [bad.pk]
        )
    Job.objects.update(due_at=Now())
    started: list[Run] = []
    monkeypatch.setattr(child._claimer, "_start", lambda runs: started.extend(runs) or [])
    child._claimer._step()
    assert {run.right[0] for run in started} == {bad.pk, good.pk}


def test_a_receiver_that_exits_does_not_end_who_tells_of_scheduled_jobs() -> None:
    @job(name="poison.scheduled")
    def work() -> None: ...

    def leave(**_: Any) -> None:
        raise SystemExit

    announcer = Announcer(WorkerOptions("desk", maintenance=False), idle_runs())
    made = work.enqueue()
    job_enqueued.connect(leave)
    try:
        announcer.enqueued([made])
        announcer.loop._step()
    finally:
        job_enqueued.disconnect(leave)
    assert announcer.is_idle


# Both before what Python can hold; the one is compared and the other subtracted, too.
EVER = ["-infinity", "4713-01-01 BC"]


def set_moment(job_: Job, column: str, moment: str) -> None:
    Job.objects.filter(pk=job_.pk).update(**{column: RawSQL("%s::timestamptz", [moment])})


@pytest.mark.parametrize("moment", EVER)
@pytest.mark.parametrize("how", ["plain", "keyed", "limited"])
def test_a_job_that_is_due_since_ever_is_claimed(how: str, moment: str) -> None:
    @job(name="poison.due", concurrency_key="one" if how == "keyed" else None, concurrency_limit=3)
    def due() -> None: ...

    if how == "limited":
        Queue.objects.create(name="default", max_running=3)
    made = [due.enqueue() for _ in range(3)]
    hand = Hand(due.name)
    claims = store.Claims(hand.scope, hand.owner)
    claims.look(connection)
    # From then on most looks leave out what lies before it in its lane.
    assert [claim.id for claim in claims.claim(connection, 1)] == [made[0].pk]
    set_moment(made[2], "due_at", moment)

    found: list[UUID] = []

    def are_found() -> bool:
        found.extend(claim.id for claim in claims.claim(connection, 1))
        return len(found) == 2

    wait_for("the claims", are_found)
    assert set(found) == {each.pk for each in made[1:]}


@pytest.mark.parametrize("moment", [*EVER, "infinity", "10000-01-01"])
def test_bounds_are_found_where_a_due_time_is_no_moment(work: JobType, moment: str) -> None:
    made, hand = [work.enqueue(), work.enqueue()], Hand(work.name)
    claims = store.Claims(hand.scope, hand.owner)
    claims.look(connection)
    set_moment(made[0], "due_at", moment)
    claims._find_bounds(connection, claims._served)
    claims._full_look_at = math.inf
    wanted = {made[1].pk} if moment in ("infinity", "10000-01-01") else {each.pk for each in made}
    assert {claim.id for claim in claims.claim(connection, 2)} == wanted


@pytest.mark.parametrize("moment", ["infinity", "10000-01-01"])
def test_a_place_in_the_order_that_is_no_moment_keeps_none_from_a_claim(
    work: JobType, moment: str
) -> None:
    made = [work.enqueue(), work.enqueue()]
    set_moment(made[0], "run_after", moment)
    hand = Hand(work.name)
    claims = hand.claim()
    assert {claim.id for claim in claims} == {each.pk for each in made}
    for claim in claims:
        hand.kill(claim, ValueError("no"))


@pytest.mark.parametrize("moment", [*EVER, "infinity", "10000-01-01"])
@pytest.mark.parametrize("key", [None, "one"])
def test_a_due_time_that_is_no_moment_is_shown(moment: str, key: str | None, client: Any) -> None:
    @job(name="poison.shown", concurrency_key=key)
    def shown() -> None: ...

    made = shown.enqueue()
    beat(shown.name)
    for column in ("due_at", "run_after"):
        set_moment(made, column, moment)
    is_due = moment in EVER
    for limit in (None, 10):
        (counts,) = [each for each in inspection.queue_counts(limit) if each.name == "default"]
        assert (counts.ready, counts.due) == (1, int(is_due))
    assert bool(inspection.problems(max_age=timedelta(days=1))) == is_due
    blocked_on = Job.objects.get().blocked_on
    assert blocked_on.startswith("" if is_due else "scheduled until 9999-12-30")
    for command in ("status", "jobs", "health"):
        with contextlib.suppress(SystemExit, CommandError):
            call_command("durable", command, stdout=StringIO(), stderr=StringIO())
    client.force_login(User.objects.create_superuser("root"))
    for page in ("job_changelist", "queue_changelist"):
        assert client.get(reverse(f"admin:durable_{page}")).status_code == 200
    assert client.get(reverse("admin:durable_job_change", args=[made.pk])).status_code == 200
    assert made.run_now() is not is_due
