"""Whatever two workers, operators and the clock do, crashes between any two statements included:
the tables hold what the model says, and in the end every job has ended.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from django.db import connection
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from django_durable import faults, store
from django_durable.choices import OnDuplicate
from django_durable.models import DeadLetter, Queue
from django_durable.store import claiming
from tests.kernel import world
from tests.kernel.model import Job, Kernel, Moment, differences, read

NAMES = ("work", "other")
QUEUES = ("wide", "narrow", "paused")
LIMITS = {"work": 2, "other": 1}
WINDOW = timedelta(seconds=30)
RATES = {"other": store.TypeRate("other", 3, 30)}
SHARE = 3
LEASE = timedelta(seconds=30)
FEW = timedelta(seconds=20)
NOW = timedelta(0)


class Crash(Exception):  # noqa: N818
    """End a verb between two statements, as the death of its process does."""


# At which statement a verb dies; or its commit arrives and its answer does not.
FAULTS = st.sampled_from([None] * 8 + [0, 1, 2, 3, 4, 5, "lost"])
PICK = st.integers(0, 30)


class Machine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        world.empty_tables()
        self.kernel = Kernel()
        self.owners: list[store.Owner] = []
        self.claims: list[store.Claims] = []
        self.held: list[list[store.Right]] = [[], []]
        self.finished: dict[UUID, Job] = {}
        # What has started under each rate.
        self.starts: dict[str, list[Moment]] = {}

    @initialize(limit=st.sampled_from([0, 1, 2]))
    def begin(self, limit: int) -> None:
        connection.durable_clock_offset = NOW  # type: ignore[attr-defined]
        Queue.objects.create(name="narrow", max_running=limit)
        Queue.objects.create(name="paused", paused=True)
        for number in (0, 1):
            self.owners.append(world.owner(f"worker {number}", LEASE))
            self.claims.append(self.new_claims(number))

    def new_claims(self, number: int) -> store.Claims:
        scope = store.Scope(frozenset(NAMES), limits=LIMITS, rates=RATES)
        return store.Claims(scope, self.owners[number])

    # How a verb is run.

    def run(
        self,
        fault: int | str | None,
        verb: Callable[[], Any],
        expect: Callable[[Any, Moment], list[Kernel]],
    ) -> tuple[bool, Any]:
        """Run a verb, perhaps into a fault; the tables must then be as `expect` says.

        `expect` returns the states after each commit of the verb. After a crash any of them may
        be, or the one before. Returns whether the caller got the answer, and the answer.
        """
        seen = 0

        def die(point: str) -> None:
            nonlocal seen
            if seen == fault:
                raise Crash(point)
            seen += 1

        low = clock()
        faults.hook = die if isinstance(fault, int) else None
        try:
            answer, crashed = verb(), False
        except Crash:
            answer, crashed = None, True
        finally:
            faults.hook = None
        states = expect(answer, Moment(low, clock()))
        self.settle([self.kernel, *states] if crashed else states[-1:])
        return not crashed and fault != "lost", answer

    def settle(self, possible: list[Kernel]) -> None:
        actual = read()
        wrong = [differences(state.jobs, actual) for state in possible]
        assert [] in wrong, wrong[-1]
        self.kernel = Kernel(actual)

    def pick(self, number: int, jobs: list[UUID]) -> UUID:
        return sorted(jobs)[number % len(jobs)]

    def ids(self, *statuses: str) -> list[UUID]:
        return [i for i, job in self.kernel.jobs.items() if not statuses or job.status in statuses]

    def has(*statuses: str) -> Any:  # type: ignore[misc]
        return precondition(lambda self: bool(self.ids(*statuses)))

    def holds(self: Machine) -> bool:
        return any(self.held)

    def right(self, number: int) -> tuple[int, store.Right]:
        """Choose a worker that believes to hold something, and one claim of it."""
        owner = number % 2 if self.held[number % 2] else 1 - number % 2
        rights = self.held[owner]
        return owner, rights[number % len(rights)]

    # Enqueueing.

    @rule(
        name=st.sampled_from(NAMES),
        queue=st.sampled_from(QUEUES),
        priority=st.sampled_from([0, 0, 5]),
        delay=st.sampled_from([-FEW, NOW, NOW, FEW]),
        maximum=st.sampled_from([1, 2, None]),
        key=st.sampled_from([None, None, "a", "b"]),
        concurrency_key=st.sampled_from([None, None, "k", "l"]),
        mode=st.sampled_from(OnDuplicate),
        within=st.sampled_from([None, None, 10.0, 60.0]),
        count=st.integers(1, 3),
        fault=FAULTS,
    )
    def enqueue(
        self,
        name: str,
        queue: str,
        priority: int,
        delay: timedelta,
        maximum: int | None,
        key: str | None,
        concurrency_key: str | None,
        mode: OnDuplicate,
        within: float | None,
        count: int,
        fault: Any,
    ) -> None:
        new = world.new_job(
            name,
            queue_name=queue,
            priority=priority,
            delay=delay,
            max_attempts=maximum,
            idempotency_key=key,
            concurrency_key=concurrency_key,
            on_duplicate=mode,
            options={} if within is None else {"start_within": within},
        )

        def expect(answer: Any, moment: Moment) -> list[Kernel]:
            after = self.kernel.copy()
            made = next(iter(read().keys() - self.kernel.jobs.keys()), uuid.uuid4())
            due = moment.plus(delay)
            job = Job(name, queue, priority, maximum=maximum, run_after=due, due=due)
            job.key, job.concurrency_key, job.within = key, concurrency_key, within
            if within is not None:
                job.start_by = moment.plus(max(delay, NOW) + timedelta(seconds=within))
            what = after.enqueue(made, job, mode)
            if answer is not None:
                assert answer.created == (what == "made")
                assert answer.refused == (what == "refused")
            return [after]

        for _ in range(count):
            self.run(fault, lambda: store.enqueue(connection, new), expect)

    # Claims, and what becomes of them.

    @has("READY", "WAITING")
    @rule(number=st.integers(0, 1), slots=st.integers(1, 4), look=st.booleans(), fault=FAULTS)
    def claim(self, number: int, slots: int, look: bool, fault: Any) -> None:
        claims, by = self.claims[number], self.owners[number].claimer
        if look or not self.held[number]:
            claims.look(connection)
            look = True
        taken: list[UUID] = []

        def expect(answer: Any, moment: Moment) -> list[Kernel]:
            after = self.kernel.copy()
            for job_id, row in read().items():
                old = self.kernel.jobs[job_id]
                if row.claimer == by and row.epoch != old.epoch:
                    assert old.is_claimable(moment.high) or old.is_claimable(moment.low), (
                        "claimed before it was due, too late, or twice"
                    )
                    assert old.queue != "paused"
                    taken.append(job_id)
                    after.claim(job_id, by, moment.plus(LEASE))
                    self.start(old, moment)
            assert len(taken) <= slots
            if answer is not None:
                self.judge_claim(claims, after, answer, taken, slots, look, moment)
            return [after]

        got, answer = self.run(fault, lambda: claims.claim(connection, slots), expect)
        if got:
            self.held[number] += [(claim.id, claim.epoch) for claim in answer]

    def judge_claim(
        self,
        claims: store.Claims,
        after: Kernel,
        answer: list[store.Claim],
        taken: list[UUID],
        slots: int,
        look: bool,
        moment: Moment,
    ) -> None:
        order = [(-claim.priority, claim.due_at, claim.id) for claim in answer]
        assert order == sorted(order)
        assert sorted(claim.id for claim in answer) == sorted(taken)
        # What has a key and what has none may both have counted on the last place in a queue.
        is_complete = not claims.incomplete
        left = [
            (job_id, job)
            for job_id, job in self.kernel.jobs.items()
            if job_id not in taken
            and job.is_claimable(moment.low)
            and job.queue != "paused"
            and not job.is_late(moment.high)
        ]
        plain = [place(i, job) for i, job in left if is_plain(job)]
        first = [place(i, self.kernel.jobs[i]) for i in taken if is_plain(self.kernel.jobs[i])]
        if look and plain and first:
            early = [at for at in first if at > min(plain)]
            oldest = min(due for _priority, due, _id in plain)
            # One in so many is the oldest, and those that are taken with it for their age.
            assert len(early) <= (slots + SHARE - 1) // SHARE, "not in the order of the priorities"
            assert all(due <= oldest for _priority, due, _id in early), "it is not the oldest"
        if look and is_complete and len(taken) < slots:
            assert not [i for i, job in left if fits(after, job) and self.may_start(job, moment)], (
                "a job was left that fits"
            )

    def start(self, job: Job, moment: Moment) -> None:
        """Note a start; no window may hold more than the rate says."""
        budget = budget_of(job)
        if budget is not None:
            starts = self.starts.setdefault(budget, [])
            starts.append(moment)
            inside = [one for one in starts if one.low >= moment.high - WINDOW]
            assert len(inside) <= RATES["other"].limit, "too many starts in a window"

    def may_start(self, job: Job, moment: Moment) -> bool:
        budget = budget_of(job)
        starts = self.starts.get(budget, []) if budget else []
        inside = [one for one in starts if one.high >= moment.low - WINDOW]
        return budget is None or len(inside) < RATES["other"].limit

    @precondition(holds)
    @rule(number=PICK, fault=FAULTS)
    def renew(self, number: int, fault: Any) -> None:
        owner, _right = self.right(number)
        rights = self.held[owner]

        def expect(answer: Any, moment: Moment) -> list[Kernel]:
            after = self.kernel.copy()
            standing = {}
            for right in rights:
                job = after.living(right)
                if job is not None:
                    job.lease = moment.plus(LEASE)
                    standing[right[0]] = job.requested
            assert answer is None or answer == standing
            return [after]

        got, answer = self.run(fault, lambda: store.renew(connection, rights, LEASE), expect)
        if got:
            self.held[owner] = [right for right in rights if right[0] in answer]

    @precondition(holds)
    @rule(number=PICK, count=st.integers(1, 3), fault=FAULTS)
    def succeed(self, number: int, count: int, fault: Any) -> None:
        owner, right = self.right(number)
        rights = [right, *(other for other in self.held[owner] if other != right)][:count]

        def expect(answer: Any, moment: Moment) -> list[Kernel]:
            states, after = [], self.kernel.copy()
            done = set()
            # The lone ones are recorded first, those with company in a second commit.
            for with_company in (False, True):
                for each in rights:
                    if self.has_company(each[0]) is with_company and after.succeed(each):
                        done.add(each[0])
                states.append(after.copy())
            assert answer is None or answer.succeeded == done
            return states

        got, _answer = self.run(fault, lambda: world.complete(*rights), expect)
        self.let_go(owner, rights, got)

    def has_company(self, job_id: UUID) -> bool:
        return bool(world.job(job_id).awaited)

    @precondition(holds)
    @rule(
        number=PICK,
        retryable=st.booleans(),
        cancel=st.sampled_from([False, False, True]),
        delay=st.sampled_from([NOW, FEW]),
        fault=FAULTS,
    )
    def fail(
        self, number: int, retryable: bool, cancel: bool, delay: timedelta, fault: Any
    ) -> None:
        owner, right = self.right(number)
        failure = world.failure(right, retryable=retryable, cancel=cancel, delay=delay)

        def expect(answer: Any, moment: Moment) -> list[Kernel]:
            after = self.kernel.copy()
            stands = after.fail(
                right, moment.plus(delay), retryable=retryable, cancel=cancel, outcome="failed"
            )
            assert answer is None or bool(answer.failed) == stands
            return [after]

        got, _answer = self.run(
            fault, lambda: store.record_failure(connection, failure, world.KEEP), expect
        )
        self.let_go(owner, [right], got)

    @precondition(holds)
    @rule(number=PICK, rejected=st.booleans(), delay=st.sampled_from([None, FEW]), fault=FAULTS)
    def release(self, number: int, rejected: bool, delay: timedelta | None, fault: Any) -> None:
        owner, right = self.right(number)

        def expect(answer: Any, moment: Moment) -> list[Kernel]:
            after = self.kernel.copy()
            due = None if delay is None else moment.plus(delay)
            stands = after.release(right, due, rejected=rejected)
            assert answer is None or bool(answer) == stands
            return [after]

        got, _answer = self.run(
            fault,
            lambda: store.release(
                connection, [right], keep=world.KEEP, delay=delay, rejected=rejected
            ),
            expect,
        )
        self.let_go(owner, [right], got)

    @has("RUNNING", "READY")
    @rule(
        seconds=st.sampled_from([0, 0, 5, 25, 60]),
        what=st.sampled_from(["rescue", "rescue", "dead", "unheld", "late"]),
        number=st.integers(0, 1),
        fault=FAULTS,
    )
    def sweep(self, seconds: int, what: str, number: int, fault: Any) -> None:
        self.move_the_clock(seconds)
        if what == "late":
            self.cancel_late(fault)
        elif what == "unheld":
            self.give_back_what_is_not_held(number, fault)
        else:
            self.rescue(number if what == "dead" else None, fault)

    def give_back_what_is_not_held(self, number: int, fault: Any) -> None:
        by, held = self.owners[number].claimer, self.held[number]

        def expect(answer: Any, moment: Moment) -> list[Kernel]:
            states, after = [], self.kernel.copy()
            for requested in (False, True):
                for job_id, job in self.kernel.jobs.items():
                    right = (job_id, job.epoch)
                    if job.claimer == by and right not in held and job.requested is requested:
                        after.release(right, None, rejected=False)
                states.append(after.copy())
            return states

        self.run(
            fault,
            lambda: store.release(connection, [], keep=world.KEEP, claimer=by, held=held),
            expect,
        )

    def cancel_late(self, fault: Any) -> None:
        def expect(answer: Any, moment: Moment) -> list[Kernel]:
            after = self.kernel.copy()
            late = after.cancel_late(moment.low)
            assert answer is None or len(answer[0]) == late
            return [after]

        self.run(fault, lambda: store.cancel_late(connection, keep=world.KEEP, limit=100), expect)

    def rescue(self, dead: int | None, fault: Any) -> None:
        claimers = None if dead is None else [self.owners[dead].claimer]

        def expect(answer: Any, moment: Moment) -> list[Kernel]:
            after = self.kernel.copy()
            for job_id, job in self.kernel.jobs.items():
                lapsed = job.status == "RUNNING" and job.lease < moment.low
                if lapsed if claimers is None else job.claimer in claimers:
                    after.rescue(job_id)
            return [after]

        self.run(fault, lambda: store.rescue(connection, world.KEEP, claimers=claimers), expect)

    def die(self, number: int) -> None:
        """Lose a worker; its successor is a new claimer."""
        self.owners[number] = world.owner("successor", LEASE)
        self.claims[number] = self.new_claims(number)
        self.held[number] = []

    # Parks and children.

    @precondition(holds)
    @rule(
        number=PICK,
        awaited=st.lists(PICK, max_size=3),
        wake=st.sampled_from([None, -FEW, FEW]),
        hold_key=st.booleans(),
        fault=FAULTS,
    )
    def park(
        self,
        number: int,
        awaited: list[int],
        wake: timedelta | None,
        hold_key: bool,
        fault: Any,
    ) -> None:
        owner, right = self.right(number)
        jobs = {self.pick(place, self.ids()) for place in awaited} - {right[0]}
        jobs -= self.waiting_for(right[0])
        if not jobs and wake is None:
            wake = FEW
        wake_at = None if wake is None else clock() + wake

        def expect(answer: Any, moment: Moment) -> list[Kernel]:
            after = self.kernel.copy()
            # Whoever is named is looked after by its completion from now on.
            said = after.park(right, sorted(jobs), wake_at, hold_key=hold_key)
            assert answer is None or answer.name == said
            return [after]

        got, answer = self.run(
            fault,
            lambda: store.park(
                connection, right, awaited=sorted(jobs), wake_at=wake_at, hold_key=hold_key
            ),
            expect,
        )
        if got and answer is store.Parked.PARKED:
            self.let_go(owner, [right], True)

    def waiting_for(self, job_id: UUID) -> set[UUID]:
        """Return all that wait for a job, however far: no waits in a circle, which never end."""
        found = {job_id}
        while more := {i for i, job in self.kernel.jobs.items() if job.awaits & found} - found:
            found |= more
        return found

    @precondition(holds)
    @rule(number=PICK, name=st.sampled_from(NAMES), fault=FAULTS)
    def bear(self, number: int, name: str, fault: Any) -> None:
        _owner, right = self.right(number)
        root = self.kernel.jobs[right[0]].root or right[0]
        before = set(self.kernel.jobs)

        def expect(answer: Any, moment: Moment) -> list[Kernel]:
            after = self.kernel.copy()
            parent = after.living(right)
            born = parent is not None and not parent.requested
            if born:
                due = moment.plus(NOW)
                made = next(iter(read().keys() - before), uuid.uuid4())
                after.jobs[made] = Job(
                    name, "wide", 0, run_after=due, due=due, parent=right[0], root=root
                )
            return [after]

        new = world.new_job(name, queue_name="wide")
        self.run(
            fault,
            lambda: store.bear(connection, new, parent=right[0], root=root, epoch=right[1]),
            expect,
        )

    # Operators and the clock.

    @has()
    @rule(
        what=st.sampled_from(["clock", "run now", "limit", "die", "cancel", "cancel tree"]),
        number=PICK,
        fault=FAULTS,
    )
    def operate(self, what: str, number: int, fault: Any) -> None:
        if what == "clock":
            self.move_the_clock(25)
        elif what == "run now":
            self.run_now(number, fault)
        elif what == "limit":
            self.limit(number % 3)
        elif what == "die":
            self.die(number % 2)
        else:
            self.cancel(number, what == "cancel tree", fault)

    def cancel(self, number: int, tree: bool, fault: Any) -> None:
        job_id = self.pick(number, self.ids())

        def expect(answer: Any, moment: Moment) -> list[Kernel]:
            after = self.kernel.copy()
            after.cancel(job_id, tree=tree)
            return [after]

        self.run(fault, lambda: world.cancel(job_id, tree=tree), expect)

    def run_now(self, number: int, fault: Any) -> None:
        job_id = self.pick(number, self.ids())

        def expect(answer: Any, moment: Moment) -> list[Kernel]:
            after = self.kernel.copy()
            after.run_now(job_id, moment)
            return [after]

        self.run(fault, lambda: store.run_now(connection, [job_id]), expect)

    @has("DEAD")
    @rule(number=PICK, fault=FAULTS)
    def replay(self, number: int, fault: Any) -> None:
        dead = self.pick(number, self.ids("DEAD"))
        letter = DeadLetter.objects.get(job=dead)
        before = set(self.kernel.jobs)
        already = self.kernel.jobs[dead].replayed

        def expect(answer: Any, moment: Moment) -> list[Kernel]:
            after = self.kernel.copy()
            if not already:
                made = next(iter(read().keys() - before), uuid.uuid4())
                after.replay(dead, made, moment)
            assert answer is None or answer.already == already
            return [after]

        self.run(fault, lambda: store.replay(connection, letter.pk), expect)

    def move_the_clock(self, seconds: int) -> None:
        connection.durable_clock_offset += timedelta(seconds=seconds)  # type: ignore[attr-defined]

    def limit(self, limit: int) -> None:
        """Change how many may run in a queue; never below what runs, which would take time."""
        running = sum(
            job.status == "RUNNING" and job.queue == "narrow" for job in self.kernel.jobs.values()
        )
        Queue.objects.filter(name="narrow").update(max_running=max(limit, running))

    def let_go(self, owner: int, rights: list[store.Right], got: bool) -> None:
        """Forget claims whose end is written; without an answer, ask how their jobs stand."""
        now = store.standing(connection, [right[0] for right in rights])
        for right in rights:
            if got or not now[right[0]].holds(right[1]):
                self.held[owner] = [other for other in self.held[owner] if other != right]

    # What always holds.

    @invariant()
    def the_tables_keep_their_laws(self) -> None:
        world.assert_laws()
        for job in self.kernel.jobs.values():
            assert job.maximum is None or job.attempt <= job.maximum
        for key in ("k", "l"):
            holders = [job for job in self.kernel.jobs.values() if job.concurrency_key == key]
            load = sum(job.holds_key for job in holders)
            assert load <= max(LIMITS.values())
            if any(job.holds_key and job.name == "other" for job in holders):
                assert load <= 2

    @invariant()
    def what_has_ended_never_changes(self) -> None:
        for job_id, job in self.kernel.jobs.items():
            if not job.is_live:
                old = self.finished.setdefault(job_id, job)
                for name in ("status", "attempt", "epoch", "run_after", "outcomes", "letters"):
                    assert getattr(old, name) == getattr(job, name)

    def teardown(self) -> None:
        """Let all that lives come to its end: nothing is lost, and nothing hangs."""
        try:
            self.drain()
        finally:
            faults.hook = None
            connection.durable_clock_offset = NOW  # type: ignore[attr-defined]

    def drain(self) -> None:
        Queue.objects.update(paused=False, max_running=None)
        connection.durable_clock_offset += timedelta(days=1)  # type: ignore[attr-defined]
        store.rescue(connection, world.KEEP)
        claims = store.Claims(
            store.Scope(frozenset(NAMES), limits=LIMITS), world.owner("last", LEASE)
        )
        self.complete_all(claims)
        # Who awaits, under a key that it keeps, what needs the key too, is helped by an operator.
        live = [(i, job) for i, job in read().items() if job.is_live]
        wanted = {job.concurrency_key for _i, job in live if job.status == "READY"}
        stuck = [i for i, job in live if job.holds_key and job.awaits]
        if any(job.concurrency_key in wanted for _i, job in live if job.holds_key):
            world.cancel(*stuck)
            self.complete_all(claims)
        left = {i: job for i, job in read().items() if job.is_live}
        assert not left, left

    def complete_all(self, claims: store.Claims) -> None:
        for _ in range(10 * len(self.kernel.jobs) + 1):
            store.cancel_late(connection, keep=world.KEEP, limit=100)
            claims.look(connection)
            taken = claims.claim(connection, 5)
            world.complete(*[(claim.id, claim.epoch) for claim in taken])


def clock() -> datetime:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT statement_timestamp() + %s",
            [connection.durable_clock_offset],  # type: ignore[attr-defined]
        )
        now: datetime = cursor.fetchone()[0]
    return now.astimezone(UTC)


def place(job_id: UUID, job: Job) -> tuple[int, datetime, UUID]:
    return -job.priority, job.due, job_id


def is_plain(job: Job) -> bool:
    return job.concurrency_key is None and job.queue == "wide" and job.name != "other"


def budget_of(job: Job) -> str | None:
    """Name the budget whose rate the start of a job needs."""
    if job.name not in RATES or job.resumed:
        return None
    return f"key:{job.concurrency_key}" if job.concurrency_key else job.name


def fits(kernel: Kernel, job: Job) -> bool:
    """Tell whether the budgets of a job would let it run, too."""
    jobs = kernel.jobs.values()
    if job.concurrency_key is not None:
        load = sum(
            other.holds_key and other.concurrency_key == job.concurrency_key for other in jobs
        )
        if load >= LIMITS[job.name]:
            return False
    if job.queue == "narrow":
        running = sum(other.status == "RUNNING" and other.queue == "narrow" for other in jobs)
        return bool(running < Queue.objects.get(name="narrow").max_running)
    return True


@pytest.fixture
def tables(tables: None, monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
    """As elsewhere; and an empty look hides nothing of what comes next."""
    settings.DURABLE_FAIR_SHARE = SHARE
    monkeypatch.setattr(claiming, "FULL_LOOK_EVERY", 0.0)


COMMON = settings(
    deadline=None,
    suppress_health_check=list(HealthCheck),
    print_blob=True,
    # The phase that explains a failure traces every line, and slows all others down.
    phases=(Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink),
)


@pytest.mark.timeout(400)
def test_the_verbs_agree_with_the_model(tables: None) -> None:
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        Machine, settings=settings(COMMON, max_examples=12, stateful_step_count=40)
    )


@pytest.mark.stress
@pytest.mark.timeout(3600)
def test_the_verbs_agree_with_the_model_for_long(tables: None) -> None:
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        Machine, settings=settings(COMMON, max_examples=1500, stateful_step_count=70)
    )
