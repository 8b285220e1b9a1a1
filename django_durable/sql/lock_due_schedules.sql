-- Lock schedules that are due; what another worker fires is left to it. A rule that has changed is
-- planned first.
SELECT id
FROM durable_schedule
WHERE
    broken = '' AND job_name = ANY(%(names)s::text[]) AND rule_seen = rule_hash
    AND next_run_at <= statement_timestamp() + %(offset)s::interval + (
-- include: widest_jitter
    )
    AND next_run_at - COALESCE(LEAST(jitter, interval '36500 days'), interval '0')
        <= statement_timestamp() + %(offset)s::interval
ORDER BY next_run_at, id
LIMIT %(limit)s
FOR NO KEY UPDATE SKIP LOCKED
