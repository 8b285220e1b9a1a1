"""Absurd on psycopg 3; run by the interpreter of its environment.

usage: absurd_peer.py install|enqueue|enqueue-many|five-steps|steps|parent|work URL [COUNT]

A client of its SDK has one connection for all its tasks, so one process runs several of them, each
a worker in a thread of its own: their commits overlap. A task can't await tasks of its own queue,
so the children have another one, with workers of its own.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psycopg
from absurd_sdk import Absurd, TaskContext
from absurdctl import BUNDLED_SCHEMA_SQL

Tasks = dict[str, Callable[..., Any]]


@dataclass(frozen=True)
class Crew:
    """Say which clients serve a queue, what each claims at once, and how often it looks."""

    queue: str
    clients: int
    batch_size: int
    poll_seconds: float


JOBS = Crew("jobs", 8, 32, 0.25)
# A parent waits for these, so they look more often; its own start is not in what it takes.
CHILDREN = Crew("children", 4, 10, 0.05)


def nothing() -> None:
    """Do nothing."""


def noop(_number: int, _context: TaskContext) -> None:
    """Do nothing."""


def steps(count: int, context: TaskContext) -> None:
    """Do so many steps that do nothing."""
    for number in range(count):
        context.step(f"step-{number}", nothing)


def child(number: int, _context: TaskContext) -> int:
    """Return the argument."""
    return number


class Parent:
    """Start children in one step and one transaction, and await them all."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection
        self._absurd = Absurd(connection, CHILDREN.queue)

    def __call__(self, count: int, context: TaskContext) -> int:
        """Await so many children."""

        def start() -> list[str]:
            with self._connection.transaction():
                return [self._start(context, number) for number in range(count)]

        ids = context.step("start", start)
        ends: list[Any] = [context.await_task_result(one, queue_name=CHILDREN.queue) for one in ids]
        return sum(end.result for end in ends)

    def _start(self, context: TaskContext, number: int) -> str:
        # The key keeps a parent that is run again from starting its children twice.
        key = f"{context.task_id}:{number}"
        made = self._absurd.spawn("child", number, queue=CHILDREN.queue, idempotency_key=key)
        return str(made["task_id"])


def work(url: str) -> None:
    """Run the workers until SIGTERM."""
    with psycopg.connect(url, autocommit=True) as connection:
        jobs: Tasks = {"noop": noop, "steps": steps, "parent": Parent(connection)}
        workers = [*clients(url, JOBS, jobs), *clients(url, CHILDREN, {"child": child})]

        def stop(*_signal: object) -> None:
            for absurd, _thread in workers:
                absurd.stop_worker()

        signal.signal(signal.SIGTERM, stop)
        for _absurd, thread in workers:
            thread.start()
        for _absurd, thread in workers:
            thread.join()


def clients(url: str, crew: Crew, tasks: Tasks) -> list[tuple[Absurd, threading.Thread]]:
    """Return the clients of a queue, each with the thread that it works in."""
    made = []
    how = {"batch_size": crew.batch_size, "poll_interval": crew.poll_seconds}
    for _ in range(crew.clients):
        absurd = Absurd(url, crew.queue)
        for name, task in tasks.items():
            absurd.register_task(name)(task)
        made.append((absurd, threading.Thread(target=absurd.start_worker, kwargs=how)))
    return made


def spawn(absurd: Absurd, task: str, arguments: list[int]) -> None:
    """Print jobs a second: one for each argument, in one transaction if the caller holds it."""
    started = time.perf_counter()
    for argument in arguments:
        absurd.spawn(task, argument, queue=JOBS.queue)
    print(len(arguments) / (time.perf_counter() - started))


def install(connection: psycopg.Connection[Any], absurd: Absurd) -> None:
    """Make its tables."""
    connection.execute(BUNDLED_SCHEMA_SQL)
    for crew in (JOBS, CHILDREN):
        absurd.create_queue(crew.queue)


def main(verb: str, url: str, count: int) -> None:
    """Do one verb on the database."""
    together = {
        "enqueue-many": ("noop", list(range(count))),
        "five-steps": ("steps", [5] * count),
        "steps": ("steps", [count]),
        "parent": ("parent", [count]),
    }
    with psycopg.connect(url, autocommit=True) as connection:
        absurd = Absurd(connection, JOBS.queue)
        if verb == "install":
            install(connection, absurd)
        elif verb == "enqueue":
            spawn(absurd, "noop", list(range(count)))
        else:
            # It has no bulk call: a statement for each, and one commit.
            with connection.transaction():
                spawn(absurd, *together[verb])


if __name__ == "__main__":
    _, verb, url, *rest = sys.argv
    if verb == "work":
        work(url)
    else:
        main(verb, url, int(rest[0]) if rest else 0)
