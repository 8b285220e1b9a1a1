"""A run under its claim: what it reads, records and waits for, whatever becomes of connections."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from datetime import datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

from django_durable import copies, faults, notifications, signals, store
from django_durable.choices import JobStatus, StepKind, StepStatus
from django_durable.conf import conf
from django_durable.exceptions import (
    CancelRequested,
    ClaimLost,
    DurableError,
    RunParked,
    RunTimedOut,
    StopRun,
)
from django_durable.journal import Journal, Known
from django_durable.step_policy import refuse_in_step
from django_durable.steps import MOST_RERUNS
from django_durable.store import Checkpoint, Claim, Right, Written
from django_durable.underway import Rank, StepsUnderWay

if TYPE_CHECKING:
    from django_durable.jobtypes import JobType
    from django_durable.models import Job

T = TypeVar("T")
Recording = Callable[[Sequence[Checkpoint]], Written]
Lending = Callable[[], AbstractContextManager[bool]]
Telling = Callable[["ClaimedRun", Sequence[signals.CheckpointKey]], None]
# So many jobs are read as fast as one; others wait meanwhile for the connection that is shared.
FEW = 10


class ClaimedRun:
    """Be one run of a job under its claim, for the verbs of its `JobContext`.

    Every write is guarded by the claim. What was written is found, or written again, when its
    connection is lost; a crash leaves what is recorded to the next run. Each verb raises `StopRun`
    (a `BaseException`) when the run is to end.
    """

    # How every run begins.
    cancel_requested = False
    is_parked = False
    # Whether it has come to a verb.
    has_begun = False
    _stop: StopRun | None = None
    _stopped: threading.Event | None = None
    _atomic_depth = 0

    def __init__(
        self,
        claim: Claim,
        job_type: JobType,
        timeout: timedelta | None,
        lease: timedelta | None = None,
        record: Recording | None = None,
        lend: Lending | None = None,
        recorded: Iterable[tuple[Any, ...]] | None = None,
        tell: Telling | None = None,
    ) -> None:
        self.claim = claim
        self.job_type = job_type
        self.options = job_type.options
        self.right: Right = (claim.id, claim.epoch)
        self.lease = lease or conf.lease
        self.started = time.monotonic()
        # When the claim was last known to stand.
        self._sure_at = self.started
        self._timeout = timeout
        self._record = record
        self._lend = lend
        self._is_guest = False
        self._pid = os.getpid()
        self._recorded = recorded
        self._tell = tell or _tell_here
        if self.options.takes_context:
            # Of transactions that the run did not open; async code meets them in another thread.
            self._atomic_depth = len(store.connection().atomic_blocks)

    @cached_property
    def job(self) -> Job:
        """Return the job as it was claimed."""
        return as_job(self.claim)

    def check_cancelled(self) -> None:
        """Raise `CancelRequested` if somebody asked to cancel this job.

        Ends the run, too, if its claim is lost or its timeout passed.
        """
        self.raise_if_stopped()
        standing = self.ask(lambda: store.standing(store.connection(), [self.claim.id]))
        now = standing.get(self.claim.id)
        if now is None or not now.holds(self.claim.epoch):
            self.stop(ClaimLost("another claim has taken the job"))
        elif now.cancel_requested:
            self.cancel_requested = True
            self.stop(CancelRequested())
        self.raise_if_stopped()

    @cached_property
    def journal(self) -> Journal:
        """Return the memory of the run."""
        return Journal(self._read_checkpoints, self._recorded)

    def _read_checkpoints(self) -> list[tuple[Any, ...]]:
        # Over a connection of its own: it may be much.
        ids = [self.claim.id]
        return self.insist(
            lambda: store.read_checkpoints(store.connection(), ids)[ids[0]], self.wait_for_database
        )

    def guard(self) -> None:
        """Refuse a verb where it can't be durable, and end a run that is to end."""
        copies.leave_if_copy(self._pid)
        self.has_begun = True
        self.raise_if_stopped()
        refuse_in_step()
        db = store.connection()
        if len(db.atomic_blocks) > self._atomic_depth:
            raise DurableError(
                "a durable verb in an open atomic() would vanish with it: close it first,"
                " or use atomic_step"
            )

    def enter(self, kind: StepKind, name: str) -> Known | None:
        """Reach a checkpoint; return what is recorded of it."""
        self.guard()
        known = self.journal.enter(kind, name)
        if known is None or not known.is_final:
            self.make_sure()
        return known

    def make_sure(self) -> None:
        """End a run that is to end; ask the database if the claim may have been lost unnoticed.

        For if the process was frozen meanwhile, another may have taken the job and recorded what
        this run is about to do. Renewals leave a lease half its time, so that within this much of
        the last answer nobody can have.
        """
        self.raise_if_stopped()
        if (now := time.monotonic()) - self._sure_at > self.lease.total_seconds() / 2:
            self.check_cancelled()
            self._sure_at = now

    def reread(self, kind: StepKind, name: str) -> Known | None:
        """Return what the database has of a checkpoint; waits for it while it is away.

        And for a commit of this run that is under way, though its connection is lost: it holds the
        lock of the job. Ends a run that is to end.
        """

        def look() -> Known | None:
            self.lock()
            return self.journal.reread(kind, name)

        return self._asked(look)

    def insist(self, write: Callable[[], T], find: Callable[[], T | None]) -> T:
        """Return what a write comes to, though the connection is lost: it is repeated then.

        `find` waits until nobody can be writing it any more; what was stored, and only the answer
        lost, it returns, or None if the write is to be repeated. Raises what goes wrong in an open
        transaction, whose owner has to begin anew, or again and again.
        """
        for left in reversed(range(MOST_RERUNS)):
            try:
                return write()
            except store.OUTAGE:
                if store.connection().in_atomic_block:
                    raise
                found = find()
                if found is not None:
                    return found
                if not left:
                    raise
        raise AssertionError("unreachable")

    def ask(self, look: Callable[[], T], jobs: int = 1, *, is_write: bool = False) -> T:
        """Return what a look at so many jobs says, though the connection is lost: as `insist`.

        Or what a write says that may as well be done twice. It waits for no lock but that of this
        job, so that it may go over the worker's connection; however long the project lets its
        statements wait.
        """
        find = self._wait_for_own_writes if is_write else self.wait_for_database
        return self.insist(lambda: self._briefly(look, jobs), find)

    def _briefly(self, verb: Callable[[], T], jobs: int = 1) -> T:
        """Do a verb over the worker's connection, or over the run's own where that would take long.

        Somebody may have locked the job, and take his time. This run waits for him, and no other.
        """
        try:
            with self.connected_for(jobs):
                return verb()
        except store.RowLocked:
            if store.connection().in_atomic_block:
                raise
            return verb()

    def wait_for_database(self) -> None:
        """Wait until the database is back."""
        self._asked(lambda: None)

    def _asked(self, look: Callable[[], T]) -> T:
        """Return what a look in a transaction of its own says; waits for an absent database."""
        pause = 0.1
        while True:
            try:
                with store.transaction(self.lease):
                    return look()
            except store.OUTAGE:
                store.connection().close()
            self.pause(pause)
            pause = min(2 * pause, 2.0)

    @contextmanager
    def connected(self) -> Iterator[None]:
        """Let a few statements go over the worker's connection, if this thread has none yet.

        For what waits for no lock but that of this job: ends of others are written over it, too.
        """
        if self._lend is None or store.connection().connection is not None:
            yield
            return
        with self._lend() as self._is_guest:
            try:
                yield
            finally:
                self._is_guest = False

    def connected_for(self, jobs: int) -> AbstractContextManager[None]:
        """Do as `connected` to read so many jobs; those of many would keep others waiting."""
        return self.connected() if jobs <= FEW else nullcontext()

    def record(self, *checkpoints: Checkpoint) -> Written:
        """Record checkpoints; ends the run if its claim is lost."""
        now = time.monotonic()
        # A write that was stored is found by its repetition, which is new no more.
        written = self.insist(lambda: self._write(checkpoints), self._wait_for_own_writes)
        if not written.stands:
            self.stop(ClaimLost("another claim has taken the job"))
            self.raise_if_stopped()
        self._sure_at = now
        self._tell_recorded(checkpoints)
        if written.cancel_requested:
            # What was just earned is kept; the next verb learns of the cancel.
            self.cancel_requested = True
            self.stop(CancelRequested())
        return written

    def _write(self, checkpoints: Sequence[Checkpoint]) -> Written:
        if self._record is not None and not store.connection().in_atomic_block:
            # Somebody may have locked the job: this run waits for him, and no other.
            with suppress(store.RowLocked):
                return self._record(checkpoints)
        return store.record_checkpoints(store.connection(), checkpoints)

    def _wait_for_own_writes(self) -> None:
        """Wait until the database is back, and a commit of this run at its end."""
        self._asked(lambda: store.lock_run(store.connection(), self.right))

    def _tell_recorded(self, checkpoints: Sequence[Checkpoint]) -> None:
        """Send `step_recorded` for what has become final, once it is committed."""
        if not signals.is_heard(signals.step_recorded):
            return
        keys = [(c.kind.value, c.name) for c in checkpoints if c.status is not StepStatus.PENDING]
        if keys:
            notifications.call_after_commit(store.connection(), lambda: self._tell(self, keys))

    def lock(self) -> Written:
        """Lock the job in the transaction that is open; ends the run if it is to end.

        Over the worker's connection it waits for nobody, and raises `RowLocked`.
        """
        run = store.lock_run(store.connection(), self.right, waits=not self._is_guest)
        if not run.stands:
            self.stop(ClaimLost("another claim has taken the job"))
        elif run.cancel_requested:
            self.cancel_requested = True
            self.stop(CancelRequested())
        self.raise_if_stopped()
        return run

    def try_park(
        self,
        checkpoint: Checkpoint | None = None,
        *,
        awaited: Sequence[UUID] = (),
        signal: str | None = None,
    ) -> bool:
        """Park the run; False if what it would wait for has come. Ends one that is to end."""
        self.raise_if_stopped()
        faults.reach("before_park")
        # Said before it is true: from the commit on somebody else may run the job.
        self.is_parked = True

        def park() -> store.Parked:
            return store.park(
                store.connection(),
                self.right,
                awaited=awaited,
                wake_at=self._next_moment(),
                hold_key=self.options.hold_key_while_parked,
                signal=signal,
                checkpoint=checkpoint,
            )

        # The locks of the awaited may be held by others.
        verb = park if awaited else lambda: self._briefly(park)
        try:
            done = self.insist(verb, lambda: store.Parked.PARKED if self.has_let_go() else None)
        except BaseException:
            self.is_parked = False
            raise
        if done is store.Parked.PARKED:
            return True
        self.is_parked = False
        if done is store.Parked.REFUSED:
            self.check_cancelled()
            raise DurableError("the run can't be parked")
        return False

    def has_let_go(self) -> bool:
        """Tell whether a park is stored whose answer is lost; else the claim stands, or is lost.

        Others may have taken the job after either; but only a loss is recorded as one.
        """

        def look() -> bool:
            if store.lock_run(store.connection(), self.right).stands:
                return False
            return not self.job.attempts.filter(started_at=self.claim.claimed_at).exists()

        return self._asked(look)

    def _next_moment(self) -> datetime | None:
        """Return the first moment at which something that is under way wants to go on."""
        moments = [self.under_way.next_try()]
        for wait in self.under_way.waits():
            known = None if wait.key is None else self.journal.load().get(wait.key)
            if known is not None and not known.is_final:
                moments.append(known.wake_at)
        return min(filter(None, moments), default=None)

    def park(
        self,
        checkpoint: Checkpoint | None = None,
        *,
        awaited: Sequence[UUID] = (),
        signal: str | None = None,
    ) -> None:
        """Park and end the run, unless what it would wait for has come."""
        if self.try_park(checkpoint, awaited=awaited, signal=signal):
            self.end_parked()

    def end_parked(self) -> None:
        """End the run that has just parked, here and at whatever verb it may try yet."""
        self.stop(RunParked())
        self.raise_if_stopped()

    @cached_property
    def under_way(self) -> StepsUnderWay:
        """Return what counts the steps that an async run has under way."""
        return StepsUnderWay()

    def may_park(self, since: int | None, own: int = 0, *, rank: Rank = Rank.JOBS) -> bool:
        """Tell whether the run may park: no more than so many steps are under way.

        Whoever takes the job next would do them at the same time. And nothing has begun or ended
        `since`: the failure of another task, or the end of the function, would have to wait for
        what the run parks for. What waits leaves parking to waits of a higher rank.
        """
        under_way = self.under_way
        return not under_way.is_busy(rank, own) and under_way.is_still(since)

    def clock(self) -> datetime:
        """Return about what the database's clock says, without asking it."""
        return self.claim.claimed_at + timedelta(seconds=time.monotonic() - self.started)

    def pause(self, seconds: float) -> None:
        """Wait in place; a stop ends it."""
        self.raise_if_stopped()
        if seconds > 0:
            self._stopped = self._stopped or threading.Event()
            self._stopped.wait(seconds)
            self.raise_if_stopped()

    async def apause(self, seconds: float) -> None:
        """Wait in place on the event loop, where a stop cancels the task."""
        self.raise_if_stopped()
        if seconds > 0:
            await asyncio.sleep(seconds)
            self.raise_if_stopped()

    def stop(self, why: StopRun) -> None:
        """End the run at its next durable verb, for the first reason that was given."""
        if self._stop is None:
            self._stop = why
            if self._stopped is not None:
                self._stopped.set()

    @property
    def is_abandoned(self) -> bool:
        """Tell whether the outcome of the run counts no more."""
        return self._stop is not None and isinstance(self._stop, ClaimLost | RunTimedOut)

    def raise_if_stopped(self) -> None:
        """Raise what `stop` said, if it did."""
        if self._stop is not None:
            raise self._stop


def _tell_here(run: ClaimedRun, keys: Sequence[signals.CheckpointKey]) -> None:
    for step in signals.find_steps(run.job, keys):
        signals.send(signals.step_recorded, job=run.job, step=step)


def as_job(claim: Claim, status: str = JobStatus.RUNNING, **changed: Any) -> Job:
    """Build the model instance of a claimed job from what the claim brought along."""
    from django_durable import payloads
    from django_durable.exceptions import PayloadDecodeError
    from django_durable.fields import Undecodable
    from django_durable.models import Job

    def decoded(text: str) -> Any:
        try:
            return payloads.decode(text)
        except PayloadDecodeError as error:
            return Undecodable(text, str(error))

    job = Job(
        id=claim.id,
        root_id=claim.root_id,
        parent_id=claim.parent_id,
        depth=claim.depth,
        name=claim.name,
        queue_name=claim.queue_name,
        requires=claim.requires,
        priority=claim.priority,
        status=status,
        args=decoded(claim.args),
        kwargs=decoded(claim.kwargs),
        metadata=claim.metadata,
        options=claim.options,
        attempt=claim.attempt,
        max_attempts=claim.max_attempts,
        rejections=claim.rejections,
        resumed=claim.resumed,
        run_after=claim.run_after,
        enqueued_at=claim.enqueued_at,
        started_at=claim.started_at,
        claimed_at=claim.claimed_at,
        epoch=claim.epoch,
        delivery_id=claim.delivery_id,
        idempotency_key=claim.idempotency_key,
        concurrency_key=claim.concurrency_key,
        schedule_id=claim.schedule_id,
        scheduled_for=claim.scheduled_for,
        **changed,
    )
    job._state.adding = False
    job._state.db = store.connection().alias
    return job
