"""Whatever happens to workflows, crashes between any two statements and thawed workers included:
no recorded step is called again, each wait has one answer, and every job comes to its end.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import connection
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from django_durable import DurableError, faults, store
from django_durable.models import DeadLetter, Job
from tests.contract.running import Runner
from tests.kernel import stories, world
from tests.kernel.test_stateful import COMMON, tables

__all__ = ["tables"]

MOMENT = timedelta(0)


class Crash(BaseException):
    """End a run at a statement, as the death of its process does."""


PICK = st.integers(0, 30)
# At which statement a run dies, if it has so many.
FAULTS = st.sampled_from([None] * 12 + list(range(12)))
MEANWHILE = st.sampled_from(["", "", "steal", "lose", "cancel", "signal"])
SIMPLE = st.one_of(
    st.just(("step",)),
    st.just(("step",)),
    st.just(("atomic",)),
    st.just(("atomic hooked",)),
    st.just(("buy",)),
    st.tuples(st.just("sleep"), st.sampled_from([0, 20])),
    st.tuples(st.just("wait"), st.sampled_from([None, 0, 20])),
    st.just(("fail",)),
    st.just(("die",)),
)
OPS = st.lists(
    st.one_of(
        SIMPLE,
        SIMPLE,
        # A child is called with one operation.
        st.builds(lambda ops: ("children", *ops), st.lists(SIMPLE, min_size=1, max_size=2)),
    ),
    min_size=2,
    max_size=5,
)


class Machine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        world.empty_tables()
        Group.objects.all().delete()
        stories.reset()
        self.laws = stories.Laws()
        self.runners = [Runner(stories.story, worker=f"worker {n}") for n in (0, 1)]
        self.held: list[list[store.Claim]] = [[], []]
        self.crashed = False

    def ids(*statuses: str) -> Any:  # type: ignore[misc]
        return precondition(lambda self: Job.all_objects.filter(status__in=statuses).exists())

    def pick(self, number: int, *statuses: str) -> Job:
        jobs = Job.all_objects.order_by("pk")
        found = list(jobs.filter(status__in=statuses) if statuses else jobs)
        job: Job = found[number % len(found)]
        return job

    @initialize(stories_of=st.lists(OPS, min_size=1, max_size=3))
    def begin(self, stories_of: list[list[Any]]) -> None:
        connection.durable_clock_offset = MOMENT  # type: ignore[attr-defined]
        for ops in stories_of:
            self.enqueue(ops)

    @precondition(lambda self: Job.all_objects.filter(finished_at__isnull=True).count() < 3)
    @rule(ops=OPS)
    def enqueue(self, ops: list[Any]) -> None:
        stories.story.enqueue(*ops)

    @ids("READY", "WAITING")
    @rule(number=st.integers(0, 1), slots=st.integers(1, 2))
    def claim(self, number: int, slots: int) -> None:
        """Let a worker claim and be frozen at once, for some time."""
        self.held[number] += self.runners[number].claim(slots)

    @precondition(lambda self: any(self.held))
    @rule(number=PICK, fault=FAULTS, meanwhile=MEANWHILE)
    def thaw(self, number: int, fault: int | None, meanwhile: str) -> None:
        """Let a worker run what it has claimed, be the claim still its own or not."""
        owner = number % 2 if self.held[number % 2] else 1 - number % 2
        claim = self.held[owner].pop(number % len(self.held[owner]))
        self.run(owner, claim, fault, meanwhile)

    @ids("READY", "WAITING")
    @rule(owner=st.integers(0, 1), fault=FAULTS, meanwhile=MEANWHILE)
    def work(self, owner: int, fault: int | None, meanwhile: str) -> None:
        for claim in self.runners[owner].claim(2):
            self.run(owner, claim, fault, meanwhile)

    def run(self, owner: int, claim: store.Claim, fault: int | None, meanwhile: str) -> None:
        if meanwhile:
            stories.notes.meanwhile = lambda: self.interrupt(meanwhile, claim, 1 - owner)
        self.go(self.runners[owner], claim, fault)
        stories.notes.meanwhile = None

    def go(self, runner: Runner, claim: store.Claim, fault: int | None = None) -> None:
        """Run a claim, and record what comes of it; note whether it died at the fault."""
        left = -1 if fault is None else fault

        def die(point: str) -> None:
            nonlocal left
            if left == 0:
                # From here on it does nothing more, whatever catches this.
                raise Crash(point)
            left -= 1

        faults.hook = die
        try:
            outcome = runner.execute(claim)
            runner.record(outcome)
        except Crash:
            self.crashed = True
        finally:
            faults.hook = None

    def interrupt(self, what: str, claim: store.Claim, other: int) -> bool:
        """Do something while a step of the claim's run is under way; tell if the claim stands."""
        armed, faults.hook = faults.hook, None
        try:
            if what == "cancel":
                Job.all_objects.get(pk=claim.id).cancel()
            elif what == "signal":
                Job.all_objects.get(pk=claim.id).signal("word", "meanwhile")
            else:
                self.move_on(60)
                self.rescue()
                for stolen in self.runners[other].claim() if what == "steal" else ():
                    self.go(self.runners[other], stolen)
            return store.standing(connection, [claim.id])[claim.id].holds(claim.epoch)
        finally:
            faults.hook = armed

    @ids("READY", "RUNNING", "WAITING")
    @rule(number=PICK, payload=st.integers(0, 3))
    def signal(self, number: int, payload: int) -> None:
        assert self.pick(number, "READY", "RUNNING", "WAITING").signal("word", payload)

    @ids("READY", "RUNNING", "WAITING")
    @rule(number=PICK, tree=st.booleans())
    def cancel(self, number: int, tree: bool) -> None:
        self.pick(number, "READY", "RUNNING", "WAITING").cancel(
            "told to" if tree else "", tree=tree
        )

    @rule(seconds=st.sampled_from([5, 25, 60]))
    def move_on(self, seconds: int) -> None:
        connection.durable_clock_offset += timedelta(seconds=seconds)  # type: ignore[attr-defined]

    @ids("RUNNING")
    @rule()
    def rescue(self) -> None:
        store.rescue(connection, world.KEEP)

    @ids("DEAD")
    @rule(number=PICK, step=st.one_of(st.none(), PICK))
    def replay(self, number: int, step: int | None) -> None:
        job = self.pick(number, "DEAD")
        names = list(job.steps.order_by("ordinal", "pk").values_list("name", flat=True))
        from_step = names[step % len(names)] if names and step is not None else None
        letter = DeadLetter.objects.get(job=job)
        try:
            letter.replay(from_step=from_step)
        except DurableError:
            undoing = Job.all_objects.filter(metadata__undo=str(job.pk), finished_at__isnull=True)
            assert letter.replayed_at is not None or undoing.exists()

    @precondition(lambda self: Job.all_objects.filter(finished_at__isnull=True).count() < 3)
    @rule(number=PICK, step=st.one_of(st.none(), PICK))
    def fork(self, number: int, step: int | None) -> None:
        job = self.pick(number)
        records = list(job.steps.order_by("ordinal", "pk"))
        named = records[step % len(records)].name if records and step is not None else None
        try:
            made = job.fork(from_step=named)
        except DurableError:
            if "undo" in job.metadata:
                return
            undoing = Job.all_objects.filter(metadata__undo=str(job.pk), finished_at__isnull=True)
            assert named is not None
            assert undoing.exists()
        else:
            assert "undo" not in job.metadata
            names = [record.name for record in records]
            before = records[: 0 if named is None else names.index(named)]
            stories.assert_given(before, made)

    @invariant()
    def the_laws_hold(self) -> None:
        world.assert_laws()
        self.laws.check()

    def teardown(self) -> None:
        try:
            self.drain()
        finally:
            faults.hook = None
            connection.durable_clock_offset = MOMENT  # type: ignore[attr-defined]

    def drain(self) -> None:
        """Let all that lives come to its end: first without, then with the signals it waits for."""
        self.finish()
        waiting = Job.all_objects.filter(finished_at__isnull=True)
        assert all(job.status == "WAITING" for job in waiting)
        for _ in range(50):
            for job in waiting.filter(waits_for__isnull=False):
                job.signal("word", "at last")
            self.finish()
            if not waiting.exists():
                break
        self.laws.check()
        left = list(waiting.values_list("pk", "status", "waits_for", "due_at", "args"))
        assert left == []

    def finish(self) -> None:
        last = Runner(stories.story, worker="last")
        for _ in range(100):
            self.move_on(3600)
            self.rescue()
            claims = last.claim()
            for claim in claims:
                self.go(last, claim)
            if not claims:
                return
        raise AssertionError("there is work without end")


@pytest.mark.timeout(300)
def test_workflows_keep_their_laws(tables: None) -> None:
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        Machine, settings=settings(COMMON, max_examples=25, stateful_step_count=25)
    )


@pytest.mark.stress
@pytest.mark.timeout(3600)
def test_workflows_keep_their_laws_for_long(tables: None) -> None:
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        Machine, settings=settings(COMMON, max_examples=1000, stateful_step_count=50)
    )


# What the search above may not come to in a short time is played here from beginning to end: each
# of these, with a death at each statement of its first or second run, and with each of what may
# come between while a step of it runs.
STORIES = [
    [("atomic",), ("step",)],
    [("step",), ("fail",), ("atomic",)],
    [("atomic hooked",), ("fail",), ("step",)],
    [("wait", 20), ("step",), ("fail",), ("step",)],
    [("wait", None), ("wait", 0), ("fail",)],
    [("step",), ("sleep", 20), ("atomic",)],
    [("buy",), ("atomic",), ("buy",), ("die",)],
    [("children", ("step",), ("atomic",)), ("step",)],
    [("buy",), ("children", ("buy",), ("wait", 20)), ("sleep", 20), ("die",)],
]


def play(ops: list[Any], *, run: int, fault: int | None = None, meanwhile: str = "") -> bool:
    """Play a story, and a fork of its job from each step; return whether the fault came to it."""
    machine = Machine()
    try:
        machine.begin(stories_of=[ops])
        (job,) = Job.all_objects.all()
        for number in range(4):
            disturbed = number == run
            machine.work(0, fault if disturbed else None, meanwhile if disturbed else "")
            machine.the_laws_hold()
            machine.move_on(25)
            machine.rescue()
            machine.the_laws_hold()
            if number == 1 and not machine.pick(0).finished_at:
                # After the timeouts, so that a second run could take it for the answer.
                job.signal("word", "late")
        for number in range(job.steps.count()):
            machine.fork(0, number)
        machine.the_laws_hold()
    finally:
        machine.teardown()
    return machine.crashed


@pytest.mark.parametrize("ops", STORIES, ids=lambda ops: "-".join(str(op[0]) for op in ops))
@pytest.mark.parametrize("run", [0, 1])
def test_a_story_keeps_its_laws_wherever_it_dies(tables: None, ops: list[Any], run: int) -> None:
    fault = 0
    while play(ops, run=run, fault=fault):
        fault += 1
    assert fault > 0 or run == 1


@pytest.mark.parametrize("ops", STORIES, ids=lambda ops: "-".join(str(op[0]) for op in ops))
@pytest.mark.parametrize("meanwhile", ["", "steal", "lose", "cancel", "signal"])
def test_a_story_keeps_its_laws_whatever_comes_between(
    tables: None, ops: list[Any], meanwhile: str
) -> None:
    for run in (0, 1):
        play(ops, run=run, meanwhile=meanwhile)
