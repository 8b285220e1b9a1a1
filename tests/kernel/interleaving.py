"""Run two bodies of SQL on two connections in every order that their statements can come.

Each body runs in a thread with a connection of its own and stops before each statement of the
store, before each COMMIT and before each ROLLBACK. A `Director` lets one of them go on at a time,
writes down who could have gone on instead, and runs the pair again for every other choice, until
all schedules have been seen. Whether a body waits for a lock is asked of PostgreSQL
(`pg_blocking_pids`); nothing here goes by time.

Two neighbouring statements that can't notice each other are tried in one order only: a plain read
beside a write that is not committed yet, and locks of different kinds (sleep sets, as model
checkers have them).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any

from django.db import connection, connections

from django_durable import faults

# How often a body that has not answered is asked whether it waits for a lock.
TICK = 0.002

READS = {
    "count_budgets",
    "count_kin",
    "find_budgets",
    "find_held",
    "find_key",
    "find_lanes",
    "find_undo",
    "keyed",
    "peek",
    "peek_limited",
    "read_letter",
    "roots",
    "standing",
}
ADVISORY = {"lock_budgets", "own_trees", "share_tree"}

Body = Callable[[Any], Any]
REPEATS = 5


class OtherWayError(AssertionError):
    """A body did not take the steps that it took in the schedule before."""


@dataclass(frozen=True)
class Stop:
    """Say that a body stands before this point; does it commit (or roll back) something?"""

    point: str
    commits: bool


@dataclass(frozen=True)
class End:
    """Say that a body has returned, or raised."""

    value: Any = None
    error: BaseException | None = None


def are_independent(one: Stop, other: Stop) -> bool:
    """Tell whether two steps on two connections come to the same in either order."""
    for x, y in ((one, other), (other, one)):
        if x.point in READS and (y.point in READS or not y.commits):
            return True
        if x.point in ADVISORY and y.point not in ADVISORY and not y.commits:
            return True
    return False


class Actor:
    """Run bodies in one thread on one connection, a step at a time."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.orders: SimpleQueue[Any] = SimpleQueue()
        self.events: SimpleQueue[Any] = SimpleQueue()
        self.thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self.thread.start()
        self.pid: int = self.events.get(timeout=60)
        self.stop = Stop("", False)
        self.ended: End | None = None

    def _serve(self) -> None:
        ACTORS[threading.get_ident()] = self
        db = connections["default"]
        with db.cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            self.events.put(cursor.fetchone()[0])
        self._stop_before(db, "_commit", "COMMIT")
        self._stop_before(db, "_rollback", "ROLLBACK")
        while (order := self.orders.get()) is not None:
            body, world = order
            try:
                self.events.put(End(body(world)))
            except BaseException as error:  # noqa: BLE001 - the test judges it
                self.events.put(End(error=error))
        db.close()
        del ACTORS[threading.get_ident()]

    def _stop_before(self, db: Any, method: str, point: str) -> None:
        original = getattr(db, method)

        def stopping() -> Any:
            self._reach(Stop(point, True))
            return original()

        setattr(db, method, stopping)

    def _reach(self, stop: Stop) -> None:
        self.events.put(stop)
        self.orders.get()

    def reach(self, point: str) -> None:
        """Stop the thread here until it is told to go on; called in the thread itself."""
        self._reach(Stop(point, not connections["default"].in_atomic_block))

    def begin(self, body: Body, world: Any) -> None:
        self.ended = None
        self.orders.put((body, world))

    def go_on(self) -> None:
        self.orders.put("go on")

    def close(self) -> None:
        self.orders.put(None)
        self.thread.join(timeout=60)


ACTORS: dict[int, Actor] = {}


def stop_here(point: str) -> None:
    """Be the `faults.hook` that stops the actors and nobody else.

    The points of a run lie beside statements or the commit, and so would only add schedules.
    """
    actor = ACTORS.get(threading.get_ident())
    if actor is not None and point not in faults.POINTS:
        actor.reach(point)


@dataclass
class Run:
    """Hold one schedule: who did what in which order, and what the bodies came to."""

    steps: list[tuple[str, str]] = field(default_factory=list)
    ends: dict[str, End] = field(default_factory=dict)
    # Steps that had to wait for a lock of the other body.
    waited: list[tuple[str, str]] = field(default_factory=list)
    deadlock: bool = False
    # For the search: at each step who was chosen, who could be, and who need not be.
    choices: list[str] = field(default_factory=list)
    free: list[dict[str, Stop]] = field(default_factory=list)
    asleep: list[frozenset[str]] = field(default_factory=list)

    def __str__(self) -> str:
        return " ".join(f"{name}:{point}" for name, point in self.steps)

    def value(self, name: str) -> Any:
        """Return what a body returned; an error that it raised is raised here."""
        end = self.ends[name]
        if end.error is not None:
            raise end.error
        return end.value

    def last(self, name: str, point: str) -> int:
        """Return the place of a body's last step of this kind, -1 if there was none."""
        return max(
            (place for place, step in enumerate(self.steps) if step == (name, point)), default=-1
        )


Prefix = tuple[list[str], frozenset[str]]


class Director:
    """Try all interleavings of two bodies."""

    def __init__(self) -> None:
        self.actors = {"A": Actor("A"), "B": Actor("B")}
        self.names = {actor.pid: actor.name for actor in self.actors.values()}

    def close(self) -> None:
        for actor in self.actors.values():
            actor.close()

    def explore(
        self,
        prepare: Callable[[], Any],
        first: Body,
        second: Body,
        check: Callable[[Any, Run], None],
        *,
        errors: tuple[type[BaseException], ...] = (),
    ) -> list[Run]:
        """Run the bodies in every order; `check` judges each with the world that `prepare` made.

        A deadlock, or an error that is not one of `errors`, fails the schedule. Returns all runs.
        """
        runs: list[Run] = []
        pending: list[Prefix] = [([], frozenset())]
        while pending:
            prefix = pending.pop()
            world, run = self._repeat(prepare, {"A": first, "B": second}, prefix)
            try:
                self._judge(world, run, check, errors)
            except BaseException as error:
                error.add_note(f"schedule {len(runs) + 1}: {run}")
                raise
            runs.append(run)
            pending += _branches(run, len(prefix[0]))
        return runs

    def _repeat(
        self, prepare: Callable[[], Any], bodies: dict[str, Body], prefix: Prefix
    ) -> tuple[Any, Run]:
        """Run a schedule; once more where a body took another way than before.

        A claim looks once more when it takes long, which a busy machine may bring about.
        """
        for _ in range(REPEATS):
            world = prepare()
            try:
                return world, self._run(world, bodies, *prefix)
            except OtherWayError as error:
                last = error
        raise last

    def _judge(self, world: Any, run: Run, check: Any, errors: Any) -> None:
        assert not run.deadlock, "a deadlock"
        for name, end in run.ends.items():
            if not isinstance(end.error, errors):
                run.value(name)
        check(world, run)

    def _run(
        self, world: Any, bodies: dict[str, Body], prefix: list[str], asleep: frozenset[str]
    ) -> Run:
        run = Run()
        try:
            self._follow(run, world, bodies, prefix, asleep)
        finally:
            self._run_out(run)
        return run

    def _follow(
        self,
        run: Run,
        world: Any,
        bodies: dict[str, Body],
        prefix: list[str],
        asleep: frozenset[str],
    ) -> None:
        blocked: set[str] = set()
        for name, actor in self.actors.items():
            actor.begin(bodies[name], world)
            self._settle(run, actor)
        while len(run.ends) < 2:
            free = {
                name: actor.stop
                for name, actor in self.actors.items()
                if name not in run.ends and name not in blocked
            }
            if not free:
                run.deadlock = True
                break
            depth = len(run.choices)
            awake = [name for name in free if name not in asleep] if depth >= len(prefix) else []
            name = prefix[depth] if depth < len(prefix) else (awake or list(free))[0]
            if name not in free:
                raise OtherWayError(f"the schedule can't be repeated: {run}")
            run.choices.append(name)
            run.free.append(free)
            run.asleep.append(asleep if depth >= len(prefix) else frozenset(free))
            run.steps.append((name, free[name].point))
            if depth >= len(prefix):
                asleep = _still_asleep(asleep, free, name)
            self.actors[name].go_on()
            for one in (name, *sorted(blocked - {name})):
                if self._settle(run, self.actors[one]):
                    blocked.discard(one)
                elif one not in blocked:
                    blocked.add(one)
                    run.waited.append(run.steps[-1])

    def _settle(self, run: Run, actor: Actor) -> bool:
        """Wait until the actor stands at a point or has ended; False if it waits for a lock."""
        while True:
            try:
                event = actor.events.get(timeout=TICK)
            except Empty:
                if self._is_blocked(actor):
                    return False
                continue
            if isinstance(event, End):
                run.ends[actor.name] = event
            else:
                actor.stop = event
            return True

    def _is_blocked(self, actor: Actor) -> bool:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_blocking_pids(%s)", [actor.pid])
            blockers = cursor.fetchone()[0]
        return any(self.names.get(pid) not in (None, actor.name) for pid in blockers)

    def _run_out(self, run: Run) -> None:
        """Let both bodies end, whatever has happened; PostgreSQL ends a deadlock after a second."""
        for actor in self.actors.values():
            if actor.name not in run.ends and not (run.deadlock or self._is_blocked(actor)):
                actor.go_on()
        while len(run.ends) < len(self.actors):
            for actor in self.actors.values():
                try:
                    event = actor.events.get(timeout=TICK)
                except Empty:
                    continue
                if isinstance(event, End):
                    run.ends[actor.name] = event
                else:
                    run.steps.append((actor.name, event.point))
                    actor.go_on()


def _still_asleep(asleep: frozenset[str], free: dict[str, Stop], chosen: str) -> frozenset[str]:
    return frozenset(
        name
        for name in asleep
        if name != chosen and name in free and are_independent(free[name], free[chosen])
    )


def _branches(run: Run, known: int) -> list[Prefix]:
    """Name the schedules that part from this one at a step that no earlier schedule decided."""
    branches: list[Prefix] = []
    for place in range(known, len(run.choices)):
        chosen, free = run.choices[place], run.free[place]
        if chosen in run.asleep[place]:
            # Everything from here on has been seen in another order.
            break
        for other in sorted(set(free) - {chosen} - run.asleep[place]):
            asleep = _still_asleep(run.asleep[place] | {chosen}, free, other)
            branches.append(([*run.choices[:place], other], asleep))
    return branches
