"""What runs in the process of an isolated run."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import threading
from typing import Any

from django_durable.worker.processtree import keep_orphans, kill_tree
from django_durable.worker.stopsignals import leave_stops_to_the_supervisor

# What the process sends before it calls the function; what comes next is the outcome.
BEGUN = b"begun"


def run(worker: Any) -> None:
    """Receive a claimed job, run it, and send what it came to."""
    os.setpgid(0, 0)
    keep_orphans()
    leave_stops_to_the_supervisor()
    threading.Thread(target=_end_with_parent, name="parent-watch", daemon=True).start()
    from django_durable import execution, payloads
    from django_durable.context import JobContext
    from django_durable.jobtypes import registry
    from django_durable.outcomes import outcome_to_tuple
    from django_durable.store import Claim

    try:
        text = worker.recv_bytes().decode()
    except EOFError:
        # The worker does not know of this process, and gives the job to another one.
        return
    claim = Claim._make(payloads.decode(text))
    job_type = registry.get(claim.name)
    timeout = execution.timeout_of(claim.options, job_type)
    context = JobContext(claim, job_type, timeout)
    worker.send_bytes(BEGUN)
    if context.is_async:
        outcome = asyncio.run(execution.aexecute(context))
    else:
        outcome = execution.execute(context)
    answer = payloads.encode(outcome_to_tuple(outcome), where="the outcome", limit=None)
    worker.send_bytes(answer.encode())
    worker.close()


def _end_with_parent() -> None:
    """Die with the worker: nothing that this run could still do would count."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        kill_tree(os.getpid())
