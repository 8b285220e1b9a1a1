"""Job types for real workers: plain ones, and those that do what no job should."""

import asyncio
import contextlib
import ctypes
import decimal
import gc
import hashlib
import importlib
import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from asgiref.sync import sync_to_async
from django.contrib.auth.models import Group
from django.db import connection, transaction
from django.utils import timezone, translation

from django_durable import (
    Backoff,
    CancelJob,
    JobContext,
    PermanentFailure,
    RejectJob,
    RetryJob,
    job,
)
from django_durable.models import DeadLetter, Job
from tests.workerapp import traffic  # noqa: F401 - defines job types
from tests.workerapp.notes import Notes

AT_ONCE = Backoff(initial=timedelta(0), jitter=0.0)


def note_death(letter: DeadLetter) -> None:
    """Note the death of a job whose first argument is its folder."""
    Notes(letter.job.args[0]).add("hook", job=letter.job_id, reason=letter.reason)


def enqueue_successor(letter: DeadLetter) -> None:
    """Enqueue something in the queue of the dead, after the last look of who had nothing to do."""
    threading.Event().wait(1.0)
    noop.using(queue_name=letter.job.queue_name).enqueue()


def note_and_raise(letter: DeadLetter) -> None:
    """Note the death, then raise what the job was told to."""
    note_death(letter)
    raise _error(letter.job.args[1])


def note_slowly(letter: DeadLetter) -> None:
    """Note the death, and take as long as the test says."""
    notes = Notes(letter.job.args[0])
    notes.add("hook", job=letter.job_id)
    notes.wait_to_go("hook")
    notes.add("hook ends", job=letter.job_id)


# Plain ones.


@job
def noop() -> None:
    """Do nothing."""


@job
async def async_noop() -> None:
    """Do nothing."""


@job
def garbage_collection() -> tuple[int, bool]:
    """Return after how many new objects garbage is collected, and whether all are looked at."""
    return gc.get_threshold()[0], gc.get_freeze_count() == 0


@job
def echo(value: Any) -> Any:
    """Return the argument."""
    return value


@job
def import_late(folder: str, name: str) -> Any:
    """Import a module that nothing else imports, and return its value."""
    sys.path.append(folder)
    return importlib.import_module(name).VALUE


@job(takes_context=True, timeout=timedelta(hours=1), on_dead_letter=note_death)
def hold(context: JobContext, folder: str, label: str = "job") -> str:
    """Note the start, wait until the test says go, note the end."""
    notes = Notes(folder)
    notes.add("start", label=label, attempt=context.attempt, job=context.job.pk)
    notes.wait_to_go(label)
    notes.add("end", label=label, attempt=context.attempt, job=context.job.pk)
    return label


@job(takes_context=True, timeout=timedelta(hours=1))
async def async_hold(context: JobContext, folder: str, label: str = "job") -> str:
    """Do what `hold` does on the loop, and note a cancellation."""
    notes = Notes(folder)
    notes.add("start", label=label, attempt=context.attempt, job=context.job.pk)
    try:
        while not notes.may_go(label):  # noqa: ASYNC110 - a file is no asyncio event
            await asyncio.sleep(0.01)
    except asyncio.CancelledError:
        notes.add("cancelled", label=label)
        raise
    notes.add("end", label=label, attempt=context.attempt, job=context.job.pk)
    return label


@job(takes_context=True, timeout=timedelta(hours=1))
async def clean_up_when_cancelled(context: JobContext, folder: str, seconds: float) -> None:
    """Wait for a cancellation, then take some time to clean up."""
    notes = Notes(folder)
    notes.add("start")
    try:
        await asyncio.sleep(3600)
    finally:
        await asyncio.sleep(seconds)
        notes.add("cleaned")


@job(takes_context=True, backoff=AT_ONCE)
def work(context: JobContext, folder: str, label: str, seconds: float = 0.0) -> str:
    """Note the start and the end, and take some time between them."""
    notes = Notes(folder)
    notes.add("start", label=label, attempt=context.attempt)
    threading.Event().wait(seconds)
    notes.add("end", label=label, attempt=context.attempt)
    return label


@job(takes_context=True, backoff=AT_ONCE)
async def async_work(context: JobContext, folder: str, label: str, seconds: float = 0.0) -> str:
    """Do what `work` does on the loop."""
    notes = Notes(folder)
    notes.add("start", label=label, attempt=context.attempt)
    await asyncio.sleep(seconds)
    notes.add("end", label=label, attempt=context.attempt)
    return label


@job
def enqueue_next(folder: str, queues: list[str]) -> None:
    """Enqueue itself into the next queue, until there is none."""
    Notes(folder).add("start", left=len(queues))
    if queues:
        enqueue_next.using(queue_name=queues[0]).enqueue(folder, queues[1:])


# Failing ones.


class FlakyError(Exception):
    """Pass by itself."""


@job(takes_context=True, backoff=AT_ONCE, on_dead_letter=note_death)
def flaky(context: JobContext, folder: str, failures: int = 10**9) -> int:
    """Fail as often as asked, then return the number of the attempt."""
    Notes(folder).add("run", attempt=context.attempt, job=context.job.pk)
    if context.attempt <= failures:
        raise FlakyError(f"failure {context.attempt}")
    return context.attempt


@job(takes_context=True, backoff=AT_ONCE)
def work_flakily(context: JobContext, folder: str, label: str, seconds: float) -> str:
    """Do what `work` does, and fail at the end of the first attempt."""
    work.func(context, folder, label, seconds)
    if context.attempt == 1:
        raise FlakyError("at first")
    return label


@job(takes_context=True, backoff=AT_ONCE)
def retry_later(context: JobContext, folder: str, delay: float, seconds: float = 0.0) -> None:
    """Ask once for another attempt after the delay; the second attempt takes some time."""
    Notes(folder).add("run", attempt=context.attempt)
    if context.attempt == 1:
        raise RetryJob("not yet", delay=timedelta(seconds=delay))
    threading.Event().wait(seconds)


@job(takes_context=True)
def reject_once(context: JobContext, folder: str, delay: float) -> int:
    """Reject itself once, then return the number of the attempt."""
    Notes(folder).add("run", rejections=context.job.rejections)
    if not context.job.rejections:
        raise RejectJob(delay=timedelta(seconds=delay))
    return context.attempt


@job(takes_context=True, backoff=AT_ONCE)
def cancel_itself(context: JobContext, then: str) -> str:
    """Ask for its own cancellation, then fail, or reject itself, or return."""
    Job.objects.get(pk=context.job.pk).cancel("by itself")
    if then == "raise":
        raise FlakyError("on the way out")
    if then == "reject":
        raise RejectJob
    return "returned"


@job(takes_context=True, timeout=timedelta(hours=1), backoff=AT_ONCE)
def fail_then_hold(context: JobContext, folder: str) -> int:
    """Fail once, then wait until the test says go; return the number of the attempt."""
    if context.attempt == 1:
        raise FlakyError("at first")
    hold.func(context, folder, "again")
    return context.attempt


class WeirdError(Exception):
    """Be an error that can't be printed."""

    def __str__(self) -> str:
        raise KeyboardInterrupt


class UndecidedError(Exception):
    """Be an error that can't say whether it may be retried."""

    @property
    def retryable(self) -> bool:
        raise SystemExit(4)


def _error(kind: str) -> BaseException:
    errors: dict[str, BaseException] = {
        "SystemExit": SystemExit(3),
        "KeyboardInterrupt": KeyboardInterrupt(),
        "GeneratorExit": GeneratorExit(),
        "CancelledError": asyncio.CancelledError(),
        "WeirdError": WeirdError(),
        "UndecidedError": UndecidedError(),
        "long message": ValueError("x" * 5_000_000),
        "bad characters": ValueError("\x00 \udce9"),
        "PermanentFailure": PermanentFailure("no use"),
        "CancelJob": CancelJob("not needed"),
        "RetryJob": RetryJob("again"),
        "ValueError": ValueError("wrong"),
        "RecursionError": RecursionError("deep"),
        "MemoryError": MemoryError(),
    }
    return errors[kind]


def _surroundings() -> list[Any]:
    precision = decimal.getcontext().prec
    return [translation.get_language(), timezone.get_current_timezone_name(), precision]


@job
def change_surroundings() -> list[Any]:
    """Choose a language, a time zone and a precision, and leave them so."""
    translation.activate("de")
    timezone.activate("Asia/Tokyo")
    decimal.getcontext().prec = 3
    return _surroundings()


@job
def surroundings() -> list[Any]:
    """Return the language, the time zone and the precision."""
    return _surroundings()


@job
async def async_surroundings() -> list[Any]:
    """Return the language, the time zone and the precision of a task."""
    return _surroundings()


@job
def close_streams() -> None:
    """Close the standard streams, and leave them so."""
    sys.stdout.close()
    sys.stderr.close()


@job(max_attempts=1)
def raising(kind: str) -> None:
    """Raise what the test names."""
    raise _error(kind)


@job(max_attempts=1)
async def async_raising(kind: str) -> None:
    """Raise what the test names, on the loop."""
    raise _error(kind)


@job(max_attempts=1)
async def async_raising_in_task(kind: str) -> str:
    """Raise what the test names in a task of its own, which the loop itself meets."""

    async def fail() -> None:
        raise _error(kind)

    task = asyncio.get_running_loop().create_task(fail())
    await asyncio.wait([task])
    return "survived"


@job(max_attempts=1, on_dead_letter=note_death)
def die(folder: str, reason: str) -> object:
    """Die of the reason that the test names."""
    if reason == "permanent":
        raise PermanentFailure("for good")
    if reason == "exhausted":
        raise FlakyError("the only attempt")
    return object()


@job(max_attempts=1, on_dead_letter=enqueue_successor)
def die_with_successor() -> None:
    """Die, with a hook that enqueues another job."""
    raise FlakyError("the only attempt")


@job(max_attempts=1, on_dead_letter=note_and_raise)
def die_badly(folder: str, kind: str) -> None:
    """Die, with a hook that fails."""
    raise FlakyError("the only attempt")


@job(max_attempts=1, on_dead_letter=note_slowly)
def die_slowly(folder: str) -> None:
    """Die, with a hook that takes its time."""
    raise FlakyError("the only attempt")


@job(max_attempts=1)
def returning_object() -> object:
    """Return what no codec stores."""
    return object()


# Those whose keys take their time.


def _sleep(seconds: float) -> str:
    threading.Event().wait(seconds)
    return "key"


def _look_up(_seconds: float) -> str:
    return str(Group.objects.count())


def _cancelled(_seconds: float) -> str:
    raise asyncio.CancelledError


@job(concurrency_key=_cancelled)
def cancelled_key(seconds: float) -> None:
    """Have a key whose making raises what is no Exception."""


@job(concurrency_key=_sleep)
def slow_key(seconds: float) -> None:
    """Have a key that takes so long to make."""


@job(concurrency_key=_look_up)
def looked_up_key(seconds: float) -> None:
    """Have a key for which a table is read."""


# Deadly ones.


@job(takes_context=True, backoff=AT_ONCE, on_dead_letter=note_death)
def exit_at_once(context: JobContext, folder: str) -> None:
    """End the process."""
    Notes(folder).add("run", attempt=context.attempt)
    os._exit(7)


@job(takes_context=True, backoff=AT_ONCE, max_attempts=2, on_dead_letter=note_death)
def exit_late(context: JobContext, folder: str) -> None:
    """End the process after all other children have long been idle."""
    Notes(folder).add("run", attempt=context.attempt)
    threading.Event().wait(1.5)
    os._exit(7)


@job(takes_context=True, backoff=AT_ONCE, on_dead_letter=note_death)
def take_all_memory(context: JobContext, folder: str) -> None:
    """Take memory until the kernel ends the process."""
    Notes(folder).add("run", attempt=context.attempt)
    taken = []
    while len(taken) < 1000:
        # Not zeros, which take none.
        taken.append(b"x" * 2**22)
    raise FlakyError("there was enough of it")


@job(backoff=AT_ONCE)
def exit_quietly() -> None:
    """End the process, and that of whoever runs beside."""
    os._exit(3)


@job(backoff=AT_ONCE, concurrency_key="quiet")
def exit_under_key() -> None:
    """End the process, under a key."""
    os._exit(3)


@job(backoff=AT_ONCE)
def innocent(seconds: float = 0.0) -> None:
    """Take some time, under the usual number of attempts."""
    threading.Event().wait(seconds)


@job(takes_context=True, backoff=AT_ONCE, on_dead_letter=note_death)
def segfault(context: JobContext, folder: str) -> None:
    """Read from nowhere."""
    Notes(folder).add("run", attempt=context.attempt)
    ctypes.string_at(0)


@job(takes_context=True, backoff=AT_ONCE)
def kill_parent_once(context: JobContext, folder: str) -> int:
    """Kill the supervisor in the first attempt."""
    Notes(folder).add("run", attempt=context.attempt)
    if context.attempt == 1:
        os.kill(os.getppid(), signal.SIGKILL)
        threading.Event().wait(60)
    return context.attempt


@job
def signal_own_group(number: int) -> str:
    """Send a signal to the own process group."""
    os.killpg(os.getpgrp(), number)
    return "survived"


@job
def fork(folder: str, then: str) -> str:
    """Fork; the copy lives on, or comes back from the job, or raises."""
    pid = os.fork()
    if pid:
        Notes(folder).add("forked", child=pid)
        return "parent"
    Notes(folder).add("copy")
    if then == "live":
        Notes(folder).wait_to_go("copy")
        os._exit(0)
    if then == "raise":
        raise SystemExit(0)
    return "copy"


@job(isolation="process")
def isolated_fork(folder: str, then: str) -> str:
    """Do what `fork` does; the original takes longer than its copy."""
    return _fork_and_wait(folder, then)


@job
async def afork(folder: str, then: str) -> str:
    """Do what `fork` does, on the loop; the copy may also wait for the loop."""
    asyncio.get_running_loop().call_soon(Notes(folder).add, "loop")
    if fork.func(folder, then) == "parent":
        return "parent"
    if then == "await":
        await asyncio.sleep(60)
    return "copy"


@job(isolation="process")
async def isolated_afork(folder: str, then: str) -> str:
    """Do what `afork` does."""
    value: str = await afork.func(folder, then)
    if value == "parent":
        Notes(folder).wait_for_end_of_copy()
    return value


@job
async def afork_in_thread(folder: str, then: str) -> str:
    """Do what `fork` does in the run's thread."""
    value: str = await sync_to_async(fork.func)(folder, then)
    return value


@job(takes_context=True)
def fork_in_step(context: JobContext, folder: str, then: str) -> str:
    """Do what `fork` does in a step."""
    value: str = context.step("fork", _fork_and_wait, folder, then)
    return value


@job(takes_context=True)
def fork_in_atomic_step(context: JobContext, folder: str, then: str) -> str:
    """Do what `fork` does in a transaction."""
    value: str = context.atomic_step("fork", _fork_and_wait, folder, then)
    return value


@job(takes_context=True)
def fork_before_step(context: JobContext, folder: str, then: str) -> str:
    """Do what `fork` does before a step."""
    value = _fork_and_wait(folder, "return")
    return str(context.step(then, str, value))


@job(takes_context=True)
async def afork_in_step(context: JobContext, folder: str, then: str) -> str:
    """Do what `afork` does in a step."""
    value: str = await context.astep("fork", afork.func, folder, then)
    return value


def _fork_and_wait(folder: str, then: str) -> str:
    value: str = fork.func(folder, then)
    if value == "parent":
        Notes(folder).wait_for_end_of_copy()
    return value


@job(timeout=timedelta(minutes=1))
def use_pool(folder: str) -> list[int]:
    """Compute in a pool of forked processes, which are told to end while they are busy."""
    with multiprocessing.get_context("fork").Pool(2) as pool:
        squares = pool.map(_square, range(4))
        for _ in range(2):
            pool.apply_async(_be_busy, [folder])
        while len(Notes(folder).read("busy")) < 2:
            threading.Event().wait(0.01)
        return squares


def _be_busy(folder: str) -> None:
    Notes(folder).add("busy")
    Notes(folder).wait_to_go("never")


def _square(number: int) -> int:
    return number * number


@job(isolation="process", timeout=timedelta(minutes=1))
def isolated_use_pool(folder: str) -> list[int]:
    """Do what `use_pool` does."""
    squares: list[int] = use_pool.func(folder)
    return squares


@job
def close_descriptors(first: int, last: int) -> str:
    """Close file descriptors that belong to others."""
    os.closerange(first, last)
    return "closed"


@job
def print_half_a_line() -> None:
    """Print what stays in the buffers."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.write("half a line")


@job
def change_into_folder_that_goes(folder: str) -> None:
    """Let the process stand in a folder that is not there any more."""
    gone = Path(folder) / "gone"
    gone.mkdir()
    os.chdir(gone)
    gone.rmdir()


@job
def change_process() -> list[str]:
    """Change what belongs to the whole process; say what it refused."""
    refused = []
    tries = {
        "signal": lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL),
        "setsid": os.setsid,
        "chdir": lambda: os.chdir("/"),
        "umask": lambda: os.umask(0o077),
        "stdout": lambda: sys.stdout.close(),
        "threads": lambda: threading.Thread(target=lambda: [][0], daemon=True).start(),
        "recursion": lambda: sys.setrecursionlimit(5000),
        "environment": lambda: os.environ.update(DJANGO_SETTINGS_MODULE="nowhere"),
    }
    for name, attempt in tries.items():
        try:
            attempt()
        except (OSError, ValueError):
            refused.append(name)
    return refused


@job(backoff=AT_ONCE, max_attempts=None)
def throw_later(pauses: list[float]) -> str:
    """Let a timer throw into the thread of this job after each pause, as if the job still ran."""
    thread = ctypes.c_ulong(threading.get_ident())

    def throw() -> None:
        for pause in pauses:
            threading.Event().wait(pause)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, ctypes.py_object(TimeoutError))

    threading.Thread(target=throw, daemon=True).start()
    return "returned"


@job
def allow_little_recursion() -> None:
    """Let no thread of the process call as deep as it needs to."""
    sys.setrecursionlimit(40)


@job
def break_new_threads() -> None:
    """Let every thread that starts from now on end at once."""
    threading.settrace(_fail)


@job(takes_context=True, backoff=AT_ONCE)
async def break_loop_once(context: JobContext) -> int:
    """End the thread of the loop in the first attempt."""
    if context.attempt == 1:
        logging.getLogger("django_durable.worker").addFilter(_fail)
        asyncio.get_running_loop().call_soon(sys.exit)
        await asyncio.sleep(3600)
    return context.attempt


def _fail(*_args: Any) -> bool:
    raise SystemExit


# What the leases and timeouts are about.


@job(takes_context=True, timeout=timedelta(hours=1), backoff=AT_ONCE)
def grind(context: JobContext, folder: str, seconds: float) -> int:
    """Spend at least the time in C code: in one call, or more if the machine got faster since."""
    started = time.perf_counter()
    hashlib.pbkdf2_hmac("sha256", b"password", b"salt", 50_000)
    rounds = int(50_000 * seconds / (time.perf_counter() - started))
    Notes(folder).add("start", attempt=context.attempt)
    started = time.perf_counter()
    while time.perf_counter() - started < seconds:
        hashlib.pbkdf2_hmac("sha256", b"password", b"salt", rounds)
    Notes(folder).add("end", attempt=context.attempt)
    return context.attempt


@job(takes_context=True, timeout=timedelta(hours=1), backoff=AT_ONCE)
def hold_interpreter(context: JobContext, folder: str, seconds: int) -> int:
    """Spend the time in C code that lets no other thread of the process run."""
    Notes(folder).add("start", attempt=context.attempt)
    ctypes.PyDLL(None).sleep(seconds)
    Notes(folder).add("end", attempt=context.attempt)
    return context.attempt


@job(takes_context=True, timeout=timedelta(seconds=0.5), max_attempts=1, on_dead_letter=note_death)
def overrun(context: JobContext, folder: str) -> str:
    """Wait longer than the timeout, then return."""
    notes = Notes(folder)
    notes.add("start", deadline=context.deadline)
    notes.wait_to_go("overrun")
    notes.add("end")
    return "too late"


@job(takes_context=True, timeout=timedelta(seconds=0.5), max_attempts=1, on_dead_letter=note_death)
async def async_overrun(context: JobContext, folder: str) -> str:
    """Wait longer than the timeout on the loop."""
    notes = Notes(folder)
    notes.add("start", deadline=context.deadline)
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        notes.add("cancelled")
        raise
    return "too late"


@job(takes_context=True, timeout=timedelta(seconds=0.5), max_attempts=1, on_dead_letter=note_death)
async def overrun_blocking_loop(context: JobContext, folder: str) -> str:
    """Do what `overrun` does, and let nothing else run on the loop meanwhile."""
    return overrun.func(context, folder)


@job(takes_context=True, timeout=timedelta(seconds=0.5), retry_on=(), backoff=AT_ONCE)
def overrun_unless_retried(context: JobContext, folder: str) -> int:
    """Overrun in the first attempt only; return the number of the attempt."""
    if context.attempt == 1:
        Notes(folder).wait_to_go("overrun")
    return context.attempt


@job(takes_context=True, timeout=timedelta(hours=1))
def check_until_cancelled(context: JobContext, folder: str, then: str = "stop") -> str:
    """Ask again and again whether it is cancelled; then stop, raise or return."""
    notes = Notes(folder)
    notes.add("start", attempt=context.attempt)
    try:
        while True:
            context.check_cancelled()
            threading.Event().wait(0.01)
    except BaseException as stopped:
        notes.add("stopped", by=type(stopped).__name__)
        if then == "raise":
            raise ValueError("on the way out") from stopped
        if then == "return":
            return "returned"
        raise


@job(takes_context=True, timeout=timedelta(hours=1))
def show_progress(context: JobContext, folder: str) -> None:
    """Show progress, then wait."""
    notes = Notes(folder)
    context.progress(3, 10, "three of ten")
    notes.add("start")
    notes.wait_to_go("progress")
    context.progress(10, 10)


@job(takes_context=True)
async def async_context(context: JobContext) -> list[Any]:
    """Use what a context offers to async code."""
    await context.acheck_cancelled()
    await context.aprogress(1, 2, "half")
    context.logger.info("halfway")
    return [context.attempt, context.delivery_key, context.deadline is not None]


@job(timeout=None)
async def block_loop(folder: str) -> None:
    """Let nothing else run on the loop until the test lets go."""
    Notes(folder).add("start")
    Notes(folder).wait_to_go("loop")


@job(timeout=None)
async def async_unlimited() -> None:
    """Do nothing, in whatever time."""


class NotNowError(RejectJob):
    """Be a rejection whose class says what it likes."""

    def __init__(self, delay: Any) -> None:
        if delay != "none at all":
            self.delay = delay


@job(timeout=None, max_attempts=1)
def reject_oddly(delay: Any) -> None:
    """Reject itself for what is no duration."""
    raise NotNowError(delay)


@job(timeout=None)
def hold_with_program(folder: str) -> None:
    """Start a program, then wait until the test says go."""
    sleeper = subprocess.Popen(["/bin/sleep", "600"])
    Notes(folder).add("start", child=sleeper.pid)
    Notes(folder).wait_to_go("job")


# In a process of its own.

ISOLATED: dict[str, Any] = {"isolation": "process", "takes_context": True, "backoff": AT_ONCE}


@job(**ISOLATED, timeout=timedelta(hours=1), on_dead_letter=note_death)
def isolated_hold(context: JobContext, folder: str, label: str = "job") -> str:
    """Do what `hold` does."""
    return str(hold.func(context, folder, label))


@job(**ISOLATED)
async def isolated_async(context: JobContext, value: Any) -> list[Any]:
    """Return the value, the attempt and the process."""
    await asyncio.sleep(0)
    return [value, context.attempt, os.getpid()]


@job(**ISOLATED, max_attempts=1)
def isolated_work(context: JobContext, folder: str, label: str, seconds: float = 0.0) -> str:
    """Do what `work` does, with one attempt."""
    return str(work.func(context, folder, label, seconds))


@job(**ISOLATED, max_attempts=1)
def isolated_raising(context: JobContext, kind: str) -> None:
    """Raise what the test names."""
    raise _error(kind)


@job(**ISOLATED, on_dead_letter=note_death)
def isolated_exit(context: JobContext, folder: str) -> None:
    """End the process."""
    Notes(folder).add("run", attempt=context.attempt)
    os._exit(7)


@job(**ISOLATED, timeout=None, max_attempts=1)
def isolated_leave_thread(context: JobContext) -> int:
    """Leave a thread behind that keeps the process; return its id."""
    threading.Thread(target=time.sleep, args=(600,)).start()
    return os.getpid()


@job(**ISOLATED, timeout=timedelta(seconds=6), max_attempts=1)
def isolated_leave_thread_late(context: JobContext) -> int:
    """Do what `isolated_leave_thread` does, as late as it may."""
    assert context.deadline is not None
    time.sleep((context.deadline - timezone.now()).total_seconds() - 1)
    pid: int = isolated_leave_thread.func(context)
    return pid


@job(**ISOLATED, timeout=None, max_attempts=1)
async def isolated_leave(context: JobContext, what: str) -> list[Any]:
    """Leave something behind that holds the loop, or keeps the process; return its id."""
    number = await context.astep("number", _seven)
    if what == "task":
        left = asyncio.ensure_future(_never_end())
        await asyncio.sleep(0)
        assert not left.done()
    elif what == "executor":
        asyncio.get_running_loop().run_in_executor(None, time.sleep, 600)
    else:
        in_thread = what == "thread"
        call = asyncio.to_thread(time.sleep, 600) if in_thread else sync_to_async(time.sleep)(600)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(call, 0.1)
    return [number, os.getpid()]


async def _seven() -> int:
    return 7


async def _never_end() -> None:
    while True:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(600)


@job(**ISOLATED, timeout=timedelta(seconds=3), max_attempts=1)
def isolated_overrun(context: JobContext, folder: str) -> None:
    """Start a process and wait for ever, in C code that holds the interpreter."""
    sleeper = subprocess.Popen(["/bin/sleep", "600"])
    Notes(folder).add("start", child=sleeper.pid)
    ctypes.PyDLL(None).sleep(600)


@job(**ISOLATED, max_attempts=2)
def isolated_tick(context: JobContext, folder: str) -> None:
    """Note every moment that it goes on."""
    while True:
        Notes(folder).add("tick", attempt=context.attempt)
        threading.Event().wait(0.1)


@job(**ISOLATED, max_attempts=1)
def isolated_detach(context: JobContext, folder: str) -> None:
    """Start processes in sessions of their own, one of them by a process that ends, and wait."""
    sleep = ["/bin/sleep", "600"]
    child = subprocess.Popen(sleep, start_new_session=True)
    orphan = subprocess.run(
        ["/bin/sh", "-c", 'setsid "$@" >/dev/null 2>&1 & echo $!', "sh", *sleep],
        check=True,
        stdout=subprocess.PIPE,
    )
    Notes(folder).add("detached", children=[child.pid, int(orphan.stdout)])
    threading.Event().wait(600)


# Connections.


@job
def session() -> tuple[int, bool, bool]:
    """Return the server process of the connection, and whether it is clean."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        pid = cursor.fetchone()[0]
    return pid, connection.get_autocommit(), connection.in_atomic_block


@job
def spoil_connection(how: str, name: str) -> str:
    """Leave the connection in a state that the next job must not see."""
    if how == "open transaction":
        transaction.atomic().__enter__()
        Group.objects.create(name=name)
    elif how == "autocommit off":
        transaction.set_autocommit(False)
        Group.objects.create(name=name)
    elif how == "failed statement":
        transaction.atomic().__enter__()
        with transaction.atomic():
            Group.objects.create(name=name)
        _swallow("SELECT nonsense")
    elif how == "closed":
        Group.objects.count()
        connection.connection.close()
    elif how == "terminated":
        _swallow("SELECT pg_terminate_backend(pg_backend_pid())")
    elif how == "raw begin":
        with connection.cursor() as cursor:
            cursor.execute("BEGIN")
        Group.objects.create(name=name)
    return how


@job
async def async_spoil_connection(how: str, name: str) -> str:
    """Do what `spoil_connection` does, from async code."""
    return await sync_to_async(spoil_connection.func)(how, name)


@job
async def async_session() -> tuple[int, bool, bool]:
    """Do what `session` does, from async code."""
    return await sync_to_async(session.func)()


def _swallow(statement: str) -> None:
    try:
        with connection.cursor() as cursor:
            cursor.execute(statement)
    except Exception:  # noqa: BLE001, S110 - this is what a careless job does
        pass


@job(takes_context=True, timeout=timedelta(hours=1))
def hold_connected(context: JobContext, folder: str, label: str) -> int:
    """Do what `hold` does with an open connection; return its server process."""
    pid = session.func()[0]
    hold.func(context, folder, label)
    return pid


# Those that not every worker takes.


@job(takes_context=True, requires="gpu")
def on_gpu(context: JobContext, folder: str) -> None:
    """Note the run; only a worker with the capability has it."""
    Notes(folder).add("run", worker=context.job.worker)


def _is_welcome(row: Job) -> bool:
    Notes(row.args[0]).add("asked", by=os.environ.get("WORKER"))
    return os.environ.get("ACCEPTS") == "yes"


@job(accept=_is_welcome, backoff=AT_ONCE)
def picky(folder: str, failures: int = 0) -> str:
    """Run only where the environment says so, after failing so often."""
    notes = Notes(folder)
    notes.add("run", by=os.environ.get("WORKER"))
    if len(notes.read("run")) <= failures:
        raise ValueError("not yet")
    return os.environ.get("WORKER", "")
