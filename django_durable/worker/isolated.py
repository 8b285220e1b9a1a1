"""What runs in the process of an isolated run."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import threading
from typing import Any

from django_durable.worker.stopsignals import leave_stops_to_the_supervisor


def run(sender: Any, text: str) -> None:
    """Run the claimed job and send what it came to."""
    os.setpgid(0, 0)
    leave_stops_to_the_supervisor()
    threading.Thread(target=_end_with_parent, name="parent-watch", daemon=True).start()
    from django_durable import execution, payloads
    from django_durable.context import JobContext
    from django_durable.jobtypes import registry
    from django_durable.outcomes import outcome_to_tuple
    from django_durable.store import Claim

    claim = Claim._make(payloads.decode(text))
    job_type = registry.get(claim.name)
    timeout = execution.timeout_of(claim.options, job_type)
    context = JobContext(claim, job_type, timeout)
    if context.is_async:
        outcome = asyncio.run(execution.aexecute(context))
    else:
        outcome = execution.execute(context)
    answer = payloads.encode(outcome_to_tuple(outcome), where="the outcome", limit=None)
    sender.send_bytes(answer.encode())
    sender.close()


def _end_with_parent() -> None:
    """Die with the worker: nothing that this run could still do would count."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.killpg(0, signal.SIGKILL)
