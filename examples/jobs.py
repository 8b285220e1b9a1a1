"""Where workers look for the job types of this app."""

from examples import (
    async_workflow,
    await_by_id,
    changed_code,
    crash_and_resume,
    durable_sleep,
    fan_out,
    hello,
    human_approval,
    side_effects,
    steps_and_retries,
)

__all__ = [
    "async_workflow",
    "await_by_id",
    "changed_code",
    "crash_and_resume",
    "durable_sleep",
    "fan_out",
    "hello",
    "human_approval",
    "side_effects",
    "steps_and_retries",
]
