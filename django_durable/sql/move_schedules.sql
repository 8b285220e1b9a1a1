-- Write down where the locked schedules stand, which can fire: what was broken has passed.
UPDATE durable_schedule AS s SET
    next_run_at = m.next_run_at,
    last_tick = COALESCE(m.last_tick, s.last_tick),
    last_run_at = COALESCE(m.last_run_at, s.last_run_at),
    last_job = COALESCE(m.last_job, s.last_job),
    skipped = s.skipped + m.skipped,
    last_skipped_at = COALESCE(m.last_skipped_at, s.last_skipped_at),
    broken = '',
    retry_at = NULL
FROM jsonb_to_recordset(%(moved)s::jsonb) AS m (
    id bigint, next_run_at timestamptz, last_tick timestamptz, last_run_at timestamptz,
    last_job uuid, skipped int, last_skipped_at timestamptz
)
WHERE s.id = m.id
