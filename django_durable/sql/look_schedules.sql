-- Is a rule new or changed, is a schedule broken, and when is the next one due? A few index seeks,
-- however many schedules there are. One with a jitter is due that much before its nominal time:
-- the widest jitter bounds the walk, which goes as far `ahead` as the next look. What an error has stopped that may pass is left alone for a while.
SELECT
    EXISTS (
        SELECT FROM durable_schedule
        WHERE job_name = ANY(%(names)s::text[]) AND rule_seen <> rule_hash
            AND (
                rule_seen <> 0 OR retry_at IS NULL
                OR retry_at <= statement_timestamp() + %(offset)s::interval
            )
    ),
    EXISTS (
        SELECT FROM durable_schedule WHERE job_name = ANY(%(names)s::text[]) AND broken <> ''
    ),
    (
        SELECT extract(EPOCH FROM min(head.due) - statement_timestamp() - %(offset)s::interval)::float8
        FROM (
            (
                -- An infinite moment can't be reckoned with.
                SELECT GREATEST(LEAST(next_run_at, '9999-12-30 00:00+00'), '0001-01-02 00:00+00') AS due
                FROM durable_schedule
                WHERE next_run_at IS NOT NULL AND broken = '' AND job_name = ANY(%(names)s::text[])
                ORDER BY next_run_at
                LIMIT 1
            )
            UNION ALL
            (
                SELECT
-- include: schedule_due
                FROM durable_schedule
                WHERE
                    broken = '' AND job_name = ANY(%(names)s::text[]) AND jitter IS NOT NULL
                    AND next_run_at <= statement_timestamp() + %(offset)s::interval + %(ahead)s + (
-- include: widest_jitter
                    )
                ORDER BY 1
                LIMIT 1
            )
            UNION ALL
            (
                SELECT GREATEST(LEAST(retry_at, '9999-12-30 00:00+00'), '0001-01-02 00:00+00')
                FROM durable_schedule
                WHERE
                    retry_at IS NOT NULL AND
-- include: schedule_is_due
                ORDER BY retry_at
                LIMIT 1
            )
        ) AS head
    )
