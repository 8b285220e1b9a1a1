"""Where workers look for the job types of this app."""

from examples import (
    api_client,
    async_workflow,
    await_by_id,
    changed_code,
    crash_and_resume,
    durable_sleep,
    fan_out,
    hello,
    human_approval,
    one_at_a_time,
    side_effects,
    steps_and_retries,
    three_fleets,
    video_pool,
)

__all__ = [
    "api_client",
    "async_workflow",
    "await_by_id",
    "changed_code",
    "crash_and_resume",
    "durable_sleep",
    "fan_out",
    "hello",
    "human_approval",
    "one_at_a_time",
    "side_effects",
    "steps_and_retries",
    "three_fleets",
    "video_pool",
]
