"""Waiting for the end of a job from any process: a notification, with a poll behind it."""

from __future__ import annotations

import time
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import psycopg
from asgiref.sync import sync_to_async
from django.db import connections

from django_durable import notifications
from django_durable.choices import JobStatus
from django_durable.conf import conf
from django_durable.current import current
from django_durable.durations import seconds
from django_durable.exceptions import JobCancelled, JobFailed, PayloadDecodeError
from django_durable.fields import Undecodable

if TYPE_CHECKING:
    from django_durable.models import Job


def wait(job: Job, timeout: float | timedelta | None) -> Any:
    """Return the value of the job once it has ended; see `Job.result`."""
    context = current.get()
    if context is not None and timeout is None:
        return context.gather([job])[0]
    limit = seconds(timeout)
    deadline = None if limit is None else time.monotonic() + limit
    found, value = outcome_of(job)
    if found:
        return value
    with Listener(notifications.ENDED) as listener:
        while True:
            # Subscribed first, asked second: no end can fall between.
            found, value = outcome_of(job)
            if found:
                return value
            pause = conf.poll_interval.total_seconds()
            if deadline is not None:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise TimeoutError(
                        f"{job} has not ended within {limit:g} s; it is {job.status}"
                    )
                pause = min(pause, left)
            listener.wait(pause, str(job.pk))


async def await_(job: Job, timeout: float | timedelta | None) -> Any:
    """Do what `wait` does in a thread of its own, so that the loop and other waits go on."""
    context = current.get()
    if context is not None and timeout is None:
        return (await context.agather([job]))[0]
    found, value = await sync_to_async(outcome_of)(job)
    if found:
        return value
    return await sync_to_async(_wait_and_close, thread_sensitive=False)(job, timeout)


def _wait_and_close(job: Job, timeout: float | timedelta | None) -> Any:
    try:
        return wait(job, timeout)
    finally:
        connections.close_all()


def outcome_of(job: Job) -> tuple[bool, Any]:
    """Read the job anew; return (True, value) if it has succeeded, (False, None) if it lives.

    Raises what the end of the job says, `Job.DoesNotExist` when it is gone, and
    `PayloadDecodeError` when this process can't read the result.
    """
    model = type(job)
    fresh = (
        model.objects.using(job._state.db or conf.database)
        .only("status", "return_value", "cancel_reason")
        .get(pk=job.pk)
    )
    if not fresh.is_finished:
        job.status = fresh.status
        return False, None
    return True, value_of(job, fresh)


def value_of(job: Job, fresh: Job) -> Any:
    """Return the value of a job that has ended, as it was just read, or raise what its end says."""
    job.status, job.cancel_reason = fresh.status, fresh.cancel_reason
    if fresh.status == JobStatus.SUCCESSFUL:
        value = job.return_value = fresh.return_value
        if isinstance(value, Undecodable):
            raise PayloadDecodeError(f"the result of {job}: {value.reason}")
        return value
    if fresh.status == JobStatus.CANCELLED:
        raise JobCancelled(fresh.cancel_reason, job=job)
    letter = fresh.dead_letter
    if letter is None:
        raise JobFailed("its dead letter has been deleted", job=job)
    raise JobFailed(
        letter.message,
        error_class=letter.error_class,
        traceback=letter.traceback,
        dead_letter=letter,
        job=job,
    )


class Listener:
    """Listen on a channel over a plain connection of its own; without one, only wait.

    A pooler in transaction mode delivers nothing, and a connection may not be had: the wait then
    passes its time, and the caller's poll finds what there is.
    """

    def __init__(self, channel: str) -> None:
        self._channel = channel
        self._connection: psycopg.Connection[Any] | None = None

    def __enter__(self) -> Listener:
        if conf.notify:
            with suppress(Pooled):
                self._connection = connect_to_listen(self._channel)
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._connection is not None:
            self._connection.close()

    def wait(self, pause: float, topic: str) -> None:
        """Wait until the topic is notified, at most `pause` seconds."""
        if self._connection is None:
            _plain_pause(pause)
            return
        try:
            for note in self._connection.notifies(timeout=pause):
                if note.payload == "*" or topic in note.payload:
                    return
        except psycopg.Error:
            self._connection.close()
            self._connection = None


class Pooled(Exception):  # noqa: N818 - the caller's poll finds what there is
    """The connection leads to a pooler, which passes no notifications on."""


def connect_to_listen(*channels: str) -> psycopg.Connection[Any] | None:
    """Return a plain autocommit connection that listens, or None when none can be had.

    Raises `Pooled` behind a pooler: a session of its pool that listens would hand on what it hears
    to whoever has it next.
    """
    wrapper = connections[conf.listen_database or conf.database]
    params = wrapper.get_connection_params()
    for name in ("cursor_factory", "context", "prepare_threshold"):
        params.pop(name, None)
    try:
        connection: psycopg.Connection[Any] = psycopg.connect(**{**params, "autocommit": True})
        row = connection.execute("SELECT pg_backend_pid()").fetchone()
        # A pooler introduces itself with a process id that is not the server's.
        is_pooled = row is not None and row[0] != connection.info.backend_pid
        for channel in () if is_pooled else channels:
            connection.execute(f"LISTEN {channel}")
    except psycopg.Error:
        return None
    if is_pooled:
        connection.close()
        raise Pooled
    return connection


def _plain_pause(pause: float) -> None:
    # Nothing in this process can end the wait: the job runs in another one.
    import threading

    threading.Event().wait(pause)
