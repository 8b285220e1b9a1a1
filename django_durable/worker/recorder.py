"""The recorder: writes outcomes in batches, again and again until they are written."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from itertools import pairwise
from typing import Any, TypeVar
from uuid import UUID

from django.db import DatabaseError
from django.db.backends.base.base import BaseDatabaseWrapper

from django_durable import logs, notifications, store
from django_durable.choices import AttemptOutcome, DeathReason, JobStatus
from django_durable.errortext import ErrorText
from django_durable.models import Attempt
from django_durable.operations import current_keep
from django_durable.outcomes import Abandoned, GivenBack, Outcome, ParkedRun, Rejected
from django_durable.store import Checkpoint, Ended, Failure, Standing, Success, Written
from django_durable.worker import connections
from django_durable.worker.announcer import Announcer
from django_durable.worker.loops import OUTAGE, Loop, logger
from django_durable.worker.runs import Run, Runs
from django_durable.worker.sharing import SharedConnection

BATCH = 500
# How many characters of results or values one statement takes if it has more than one of them. The
# server refuses a quarter of a gigabyte, as it would again and again.
LARGEST = 32 << 20
AGAIN_AFTER = 1.0
LOCKED_AGAIN_AFTER = 0.1
ENDS_WAIT = 0.003
# What only the claim's own worker records; a loss or a timeout may have been written in its place.
OWN = (AttemptOutcome.FAILED, AttemptOutcome.CANCELLED)
Pending = tuple[Run, Outcome]
T = TypeVar("T")


def _take(waiting: deque[T], size_of: Callable[[T], int]) -> list[T]:
    """Take what goes into one statement: one item at least, and then as many as fit."""
    batch: list[T] = []
    size = 0
    while waiting and len(batch) < BATCH:
        size += size_of(waiting[0])
        if batch and size > LARGEST:
            break
        batch.append(waiting.popleft())
    return batch


def _size_of(pending: Pending) -> int:
    outcome = pending[1]
    return len(outcome.result) if isinstance(outcome, Success) else 0


def _attempt_of(run: Run) -> Attempt | None:
    """Return the record of how the claim of a run ended, if that was no success."""
    claim = run.context.claim
    # The number alone may be that of a later claim, if this one was given back.
    found = Attempt.objects.filter(job=claim.id, number=claim.attempt, started_at=claim.claimed_at)
    return found.first()


def _end_of(run: Run, attempt: Attempt, status: JobStatus) -> Ended:
    claim = run.context.claim
    return Ended(
        *(claim.id, claim.epoch, claim.name, claim.queue_name, claim.attempt, status),
        *(attempt.worker, claim.claimed_at, claim.run_after, attempt.finished_at, ""),
    )


def _job_of(item: Pending) -> UUID:
    return item[0].right[0]


def _divide(
    db: BaseDatabaseWrapper, items: list[T], job_of: Callable[[T], UUID]
) -> tuple[list[T], list[T]]:
    """Return those whose job somebody else has locked at this moment, and the others."""
    locked = store.locked_by_others(db, [job_of(item) for item in items])
    return (
        [item for item in items if job_of(item) in locked],
        [item for item in items if job_of(item) not in locked],
    )


class Ticket:
    """Be the checkpoints that one run wants recorded, and the answer it waits for."""

    def __init__(self, checkpoints: Sequence[Checkpoint]) -> None:
        self.checkpoints = checkpoints
        self.answered = False
        self._answer: Written | None = None
        self._error: Exception | None = None
        self._gate = threading.Lock()
        self._gate.acquire()
        # Who is to be woken next.
        self._next: Ticket | None = None

    @property
    def job(self) -> UUID:
        """Return the job that they are of."""
        return self.checkpoints[0].right[0]

    @property
    def size(self) -> int:
        """Return how much there is to write."""
        return sum(len(checkpoint.value or "") for checkpoint in self.checkpoints)

    def done(self, answer: Written) -> None:
        """Give the answer, for `wake` to tell of."""
        self._answer = answer
        self.answered = True

    def fail(self, error: Exception) -> None:
        """Say that the database refuses it."""
        self._error = error
        self.answered = True
        self._gate.release()

    @staticmethod
    def wake(tickets: Sequence[Ticket]) -> None:
        """Wake those who wait for these: the first, who wakes the next before he goes on.

        All at once they would be in each other's way, since Python runs one thread at a time.
        """
        for ticket, following in pairwise(tickets):
            ticket._next = following
        if tickets:
            tickets[0]._gate.release()

    def wait(self) -> Written:
        """Wait for the answer."""
        self._gate.acquire()
        if self._next is not None:
            self._next._gate.release()
        if self._answer is None:
            raise self._error or RuntimeError("the recorder has ended")
        return self._answer


class Recorder:
    """Turn outcomes into writes; a claim is let go only when its end is in the database.

    A crash before the commit repeats the run, as the guarantees say; one after it finds the end
    recorded. A write whose answer was lost is repeated, and finds its own earlier one.
    """

    def __init__(self, runs: Runs, announcer: Announcer, woken: Callable[[], None]) -> None:
        self._runs = runs
        self._announcer = announcer
        self._woken = woken
        self._pending: deque[Pending] = deque()
        self._tickets: deque[Ticket] = deque()
        self._unwritten: list[Pending] = []
        self._is_brief = False
        # Of jobs whose row somebody else has locked, or that of what waits for them.
        self._locked: list[Pending] = []
        self._locked_look_at = 0.0
        self._again_at = 0.0
        self._unnotified: list[UUID] = []
        self._notified_at = 0.0
        self._shared = SharedConnection()
        self._last_batch = 0
        self._ends_due_at = math.inf
        self.loop = Loop("recorder", self._step)

    def put(self, run: Run, outcome: Outcome) -> None:
        """Take an outcome; it is written within milliseconds."""
        self._pending.append((run, outcome))
        self.loop.wake()

    def record_checkpoints(self, checkpoints: Sequence[Checkpoint]) -> Written:
        """Record what a run has earned, in one commit with what others have, and wait for it.

        The run writes it itself if the recorder is idle, which spares two switches of threads.
        """
        ticket = Ticket(checkpoints)
        self._tickets.append(ticket)
        if self._last_batch > 1:
            # Others are about to record, too: all in one commit.
            self.loop.wake()
            return ticket.wait()
        with self._shared.if_free() as db:
            if db is not None:
                # In an outage the ticket is back in its place, and the recorder waits for the end.
                with suppress(*OUTAGE):
                    self._write_tickets(db)
        if not ticket.answered:
            self.loop.wake()
        return ticket.wait()

    def lend(self) -> AbstractContextManager[bool]:
        """Lend the connection to a run for a few statements, in a `with` block; tell whether."""
        return self._shared.lent()

    def flush(self, timeout: float) -> bool:
        """Wait until all is written, at most `timeout` seconds; return whether it is."""
        end = time.monotonic() + timeout
        while self._runs.rights() and time.monotonic() < end:
            self.loop.wake()
            threading.Event().wait(0.005)
        return not self._runs.rights()

    def _write_tickets(self, db: BaseDatabaseWrapper) -> None:
        tickets = _take(self._tickets, lambda ticket: ticket.size)
        self._last_batch = len(tickets)
        try:
            if not self._is_brief:
                tickets = self._fail_locked(db, tickets, store.RowLocked("somebody has locked it"))
            self._write_these(db, tickets)
        except OUTAGE:
            # Some may have been answered, when they were written one by one.
            self._tickets.extendleft(reversed([each for each in tickets if not each.answered]))
            raise

    def _write_these(self, db: BaseDatabaseWrapper, tickets: list[Ticket]) -> None:
        """Write tickets; what one can't be written for must not fail the others.

        Or hold them up: a run whose job somebody has locked waits for that by itself.
        """
        every = [checkpoint for ticket in tickets for checkpoint in ticket.checkpoints]
        try:
            written = iter(store.record_for_many(db, every))
        except store.RowLocked as error:
            free = self._fail_locked(db, tickets, error)
            if len(free) == len(tickets):
                # It was for a moment; or else, one by one, whoever it is for is found.
                free.pop().fail(error)
            if free:
                self._write_these(db, free)
            return
        except OUTAGE:
            raise
        except Exception as error:  # noqa: BLE001 - told to the run that asked
            if len(tickets) == 1:
                tickets[0].fail(error)
                return
            for ticket in tickets:
                self._write_these(db, [ticket])
            return
        for ticket in tickets:
            ticket.done([next(written) for _ in ticket.checkpoints][-1])
        Ticket.wake(tickets)

    def _fail_locked(
        self, db: BaseDatabaseWrapper, tickets: list[Ticket], error: store.RowLocked
    ) -> list[Ticket]:
        """Tell the runs whose jobs somebody has locked; return the tickets of the others."""
        locked, free = _divide(db, tickets, lambda ticket: ticket.job)
        for ticket in locked:
            ticket.fail(error)
        return free

    def _step(self) -> float | None:
        with self._shared.owned():
            if self._pending or self._tickets or self._unwritten or self._locked:
                self._is_brief = store.wait_briefly(store.connection())
            return self._write_waiting()

    def _write_waiting(self) -> float | None:
        if self._tickets:
            self._write_tickets(store.connection())
            if self._pending and (left := self._patience_left()) > 0:
                return left
        self._ends_due_at = math.inf
        if self._unwritten and time.monotonic() >= self._again_at:
            self._pending.extend(self._unwritten)
            self._unwritten.clear()
        self._look_for_unlocked()
        batch = _take(self._pending, _size_of)
        if batch:
            try:
                # Else statements wait for locks for as long as it takes.
                self._write(batch if self._is_brief else self._set_locked_aside(batch))
            except OUTAGE:
                self._pending.extendleft(reversed(batch))
                raise
        if self._pending or self._tickets:
            return 0
        pauses = [self._notify_ended()]
        if self._unwritten:
            pauses.append(max(self._again_at - time.monotonic(), 0))
        if self._locked:
            pauses.append(max(self._locked_look_at - time.monotonic(), 0))
        return min((pause for pause in pauses if pause is not None), default=None)

    def _set_locked_aside(self, batch: list[Pending]) -> list[Pending]:
        """Put off what somebody has locked, or what waits for it; return the others."""
        locked, free = _divide(store.connection(), batch, _job_of)
        self._locked += locked
        return free

    def _look_for_unlocked(self) -> None:
        """Take up again the ends of jobs that somebody had locked, and has no more."""
        now = time.monotonic()
        if self._locked and now >= self._locked_look_at:
            self._locked_look_at = now + LOCKED_AGAIN_AFTER
            self._locked, free = _divide(store.connection(), self._locked, _job_of)
            self._pending.extend(free)

    def _patience_left(self) -> float:
        """Return how long ends may still wait for company, while steps keep the recorder busy.

        Nobody waits for an end as a run does for its step, and a commit for each would be most of
        the commits.
        """
        now = time.monotonic()
        self._ends_due_at = min(self._ends_due_at, now + ENDS_WAIT)
        return self._ends_due_at - now

    def _write(self, batch: list[Pending]) -> None:
        """Write a batch; what one item can't be written for must not stop the others."""
        try:
            self._write_all(batch)
        except store.RowLocked:
            self._write_unlocked(batch)
        except OUTAGE:
            raise
        except Exception as error:  # noqa: BLE001 - told of below
            if len(batch) == 1:
                self._write_otherwise(*batch[0], error)
                return
            for item in batch:
                self._write([item])

    def _write_unlocked(self, batch: list[Pending]) -> None:
        """Write what nobody has locked of a batch that met a lock."""
        free = self._set_locked_aside(batch)
        if len(free) == len(batch):
            # It was for a moment; or else, one by one, whoever it is for is found.
            self._locked.append(free.pop(0))
        if free:
            self._write(free)

    def _write_otherwise(self, run: Run, outcome: Outcome, error: Exception) -> None:
        """Write that an end can't be stored; if it is not for its content, put it off."""
        try:
            if isinstance(error, DatabaseError | ValueError):
                self._write_unstorable(run, outcome, error)
                return
        except OUTAGE:
            raise
        except Exception as other:  # noqa: BLE001 - told of below
            error = other
        # Nobody knows what it is. The claim stays, and so does its end.
        logger.error("The end of %s can't be written now", run.right[0], exc_info=error)
        connections.drop()
        self._unwritten.append((run, outcome))
        self._again_at = time.monotonic() + AGAIN_AFTER

    def _write_all(self, batch: list[Pending]) -> None:
        # When a batch is written again, some of it is done already; and an outcome is put twice by
        # a thread into which something was thrown meanwhile.
        once = dict(batch).items()
        batch = [(run, outcome) for run, outcome in once if self._runs.holds(run)]
        successes = [(run, o) for run, o in batch if isinstance(o, Success)]
        if successes:
            self._write_successes(successes)
        for run, outcome in batch:
            if isinstance(outcome, Failure):
                self._write_failure(run, outcome)
            elif isinstance(outcome, Rejected):
                self._reject(run, outcome)
            elif isinstance(outcome, GivenBack):
                self._give_back(run)
            elif isinstance(outcome, ParkedRun):
                self._runs.forget([run])
                self._announcer.parked(run)
            elif isinstance(outcome, Abandoned):
                self._lose(run)

    def _write_successes(self, successes: list[tuple[Run, Success]]) -> None:
        db = store.connection()
        recorded = store.record_successes(db, [outcome for _run, outcome in successes])
        self._wake_queues(recorded.woken_queues)
        written = [run for run, _outcome in successes]
        missing: list[Run] = []
        if len(recorded.successes) < len(successes):
            done = recorded.succeeded
            missing = [run for run in written if run.right[0] not in done]
            written = [run for run in written if run.right[0] in done]
        self._ended(written)
        self._announcer.succeeded(written)
        self._judge_missing(missing)

    def _write_failure(self, run: Run, failure: Failure) -> None:
        recorded = store.record_failure(store.connection(), failure, current_keep())
        self._wake_queues(recorded.woken_queues)
        if not recorded.failed:
            self._judge_missing([run])
            return
        self._failed(run, recorded.failed[0], failure.error)

    def _failed(self, run: Run, end: Ended, error: ErrorText) -> None:
        if end.status is JobStatus.READY:
            self._runs.forget([run])
        else:
            self._ended([run])
        self._announcer.failed(end, error, run)

    def _reject(self, run: Run, outcome: Rejected) -> None:
        if self._release(run, delay=outcome.delay, rejected=True):
            logs.rejected(run.context.claim, outcome)

    def _give_back(self, run: Run) -> None:
        if self._release(run):
            # For other workers, who may have what was wanting here.
            self._wake_queues({run.context.claim.queue_name})

    def _release(self, run: Run, **how: Any) -> bool:
        """Take a claim back uncounted; return whether the job waits again."""
        released = store.release(store.connection(), [run.right], keep=current_keep(), **how)
        if not released:
            self._judge_missing([run])
        elif released[0].status is JobStatus.CANCELLED:
            self._ended([run])
            self._announcer.cancelled(run.right[0])
        else:
            self._runs.forget([run])
            return True
        return False

    def _judge_missing(self, runs: list[Run]) -> None:
        """Tell whether an earlier write arrived, whose answer was lost, or the claim is lost."""
        if not runs:
            return
        now = store.standing(store.connection(), [run.right[0] for run in runs])
        for run in runs:
            self._judge(run, now.get(run.right[0]))

    def _judge(self, run: Run, job: Standing | None) -> None:
        # Later claims count on from a failure, so it is found by its attempt; all else by the row.
        status = job.status if job is not None and job.epoch == run.right[1] else None
        attempt = _attempt_of(run)
        if attempt is not None and attempt.outcome in OWN:
            error = ErrorText(attempt.error_class, attempt.message, attempt.traceback)
            self._failed(run, _end_of(run, attempt, status or JobStatus.READY), error)
        elif status is JobStatus.SUCCESSFUL:
            self._ended([run])
            self._announcer.succeeded([run])
        elif attempt is None and status is JobStatus.CANCELLED:
            self._ended([run])
            self._announcer.cancelled(run.right[0])
        elif attempt is None and status is JobStatus.READY:
            # Rejected or given back, which nobody is told of.
            self._runs.forget([run])
        elif job is not None and job.ended_by(run.right[1]):
            self._ended([run])
        else:
            self._lose(run)

    def _lose(self, run: Run) -> None:
        was_timed_out = run.is_timed_out
        self._runs.forget([run])
        if not was_timed_out:
            self._announcer.lost(run)

    def _write_unstorable(self, run: Run, outcome: Outcome, error: Exception) -> None:
        """Record a result or error that the database refuses as a death that says so."""
        told = ErrorText.told_of(error).message
        logger.error("The end of %s can't be stored: %s", run.right[0], told)
        text = ErrorText.of(type(error).__name__, f"the outcome can't be stored: {told}")
        failure = Failure(run.right, text, retryable=False, reason=DeathReason.UNSTORABLE)
        if isinstance(outcome, Success | Failure | Rejected):
            self._write_failure(run, failure)
        else:
            self._runs.forget([run])

    def _ended(self, runs: list[Run]) -> None:
        self._runs.forget(runs)
        self._unnotified += [run.right[0] for run in runs]

    def _wake_queues(self, queues: frozenset[str] | set[str]) -> None:
        if queues:
            self._woken()
            notifications.notify(store.connection(), notifications.READY, queues)

    def _notify_ended(self) -> float | None:
        """Tell who waits for results, at most once in a window; return when the next may go."""
        if not self._unnotified:
            return None
        wait = self._notified_at + notifications.WINDOW - time.monotonic()
        if wait > 0:
            return wait
        ended, self._unnotified = self._unnotified, []
        self._notified_at = time.monotonic()
        notifications.notify(
            store.connection(), notifications.ENDED, [notifications.ids_topic(ended)]
        )
        return None
