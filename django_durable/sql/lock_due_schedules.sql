-- Lock schedules that are due; what another worker fires is left to it. A rule that has changed is
-- planned first.
SELECT id
FROM durable_schedule
WHERE
    broken = '' AND job_name = ANY(%(names)s::text[]) AND rule_seen = rule_hash
    AND next_run_at <= statement_timestamp() + %(offset)s::interval + (
-- include: widest_jitter
    )
    AND
-- include: schedule_due
    <= statement_timestamp() + %(offset)s::interval
ORDER BY next_run_at, id
LIMIT %(limit)s
FOR NO KEY UPDATE SKIP LOCKED
