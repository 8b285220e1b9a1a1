"""The places of children: who starts, and when, as children come up, die and change their code."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest

from django_durable.worker import childprocess
from django_durable.worker.childprocess import ChildProcess, Place
from django_durable.worker.options import WorkerOptions

PIDS = itertools.count(1000)


class Told:
    """A child without a process, which comes up and dies as the test says."""

    def __init__(self, options: WorkerOptions) -> None:
        self.process = SimpleNamespace(pid=next(PIDS))
        self.channel = SimpleNamespace(send=lambda *_, **__: None)
        self.started = childprocess.__dict__["time"].monotonic()
        self.is_ready = self.is_done = self.is_stopped = False
        self.slots = self.live = 0

    def drain(self) -> None: ...

    def close(self) -> None: ...

    def stop(self) -> None:
        self.is_stopped = self.is_done = True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A clock that stands, unless the test moves it."""
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(childprocess, "time", SimpleNamespace(monotonic=lambda: clock.now))
    monkeypatch.setattr(childprocess, "ChildProcess", Told)
    return clock


@pytest.fixture
def place(clock: Any) -> Place:
    """A place whose first child is ready."""
    place = Place(WorkerOptions("desk"))
    place.staff()
    place.ready(current(place))
    return place


def current(place: Place) -> ChildProcess:
    assert place.current is not None
    return place.current


def successor(place: Place) -> ChildProcess:
    assert place.successor is not None
    return place.successor


def die_at_start(place: Place, clock: Any, times: int) -> None:
    """Let so many successors die before they are ready."""
    for _ in range(times):
        clock.now += 60
        place.staff()
        place.bury(successor(place), failed=True)


def test_a_change_while_a_successor_starts_brings_another_in_its_stead(place: Place) -> None:
    old = current(place)
    place.reload()
    outdated = successor(place)

    place.reload()

    assert outdated.is_done
    assert successor(place) is not outdated
    place.ready(successor(place))
    assert current(place) not in (old, outdated)


def test_a_change_while_the_first_child_starts_brings_another_in_its_stead(clock: Any) -> None:
    place = Place(WorkerOptions("desk"))
    place.staff()
    outdated = current(place)

    place.reload()

    assert outdated.is_done
    assert current(place) is not outdated


def test_changed_code_is_tried_at_once_however_often_other_code_has_failed(
    place: Place, clock: Any
) -> None:
    place.reload()
    die_at_start(place, clock, 8)
    place.staff()
    assert place.successor is None

    place.reload()

    assert place.successor is not None


def test_a_start_that_succeeds_ends_the_long_pauses_of_those_that_failed(
    place: Place, clock: Any
) -> None:
    place.replace(current(place), "the test says so")
    die_at_start(place, clock, 8)
    clock.now += 60
    place.staff()
    place.ready(successor(place))

    place.replace(current(place), "the test says so")
    place.bury(successor(place), failed=True)
    clock.now += childprocess.LONGEST_RESTART_WHEN_READY
    place.staff()

    assert place.successor is not None
