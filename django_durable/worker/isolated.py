"""What runs in the process of an isolated run."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import threading
from typing import TYPE_CHECKING, Any

from django_durable.worker.processtree import keep_orphans, kill_tree
from django_durable.worker.stopsignals import leave_stops_to_the_supervisor

if TYPE_CHECKING:
    from django_durable.outcomes import Outcome

# What the process sends before it calls the function; what comes next is the outcome.
BEGUN = b"begun"
# So long, in seconds, an async run that has ended waits for what it has left in its thread: a verb
# that parks it has begun to by then, and all else ends with the process.
LEAVE_WITHIN = 0.5


def run(worker: Any) -> None:
    """Receive a claimed job, run it, and send what it came to."""
    os.setpgid(0, 0)
    keep_orphans()
    leave_stops_to_the_supervisor()
    threading.Thread(target=_end_with_parent, name="parent-watch", daemon=True).start()
    from django_durable import copies, execution, payloads
    from django_durable.context import JobContext
    from django_durable.jobtypes import registry
    from django_durable.outcomes import outcome_to_tuple
    from django_durable.store import Claim

    try:
        text = worker.recv_bytes().decode()
    except EOFError:
        # The worker does not know of this process, and gives the job to another one.
        return
    values, lease = payloads.decode(text)
    claim = Claim._make(values)
    job_type = registry.get(claim.name)
    timeout = execution.timeout_of(claim.options, job_type)
    context = JobContext(claim, job_type, timeout, lease=lease)
    worker.send_bytes(BEGUN)
    original = os.getpid()

    def answer(outcome: Outcome) -> None:
        copies.leave_if_copy(original)
        text = payloads.encode(outcome_to_tuple(outcome), where="the outcome", limit=None)
        worker.send_bytes(text.encode())
        worker.close()

    async def arun() -> None:
        copies.end_copies_of_loop(asyncio.get_running_loop())
        # Not after `asyncio.run`, which waits for what the function has left behind.
        answer(await execution.aexecute(context, LEAVE_WITHIN))

    if context.is_async:
        asyncio.run(arun())
    else:
        answer(execution.execute(context))


def _end_with_parent() -> None:
    """Die with the worker: nothing that this run could still do would count."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        kill_tree(os.getpid())
