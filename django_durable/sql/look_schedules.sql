-- Is a rule new or changed, is a schedule broken, and when is the next one due? A few index seeks,
-- however many schedules there are. One with a jitter is due that much before its nominal time:
-- the widest jitter bounds the walk.
SELECT
    EXISTS (
        SELECT FROM durable_schedule
        WHERE job_name = ANY(%(names)s::text[]) AND rule_seen <> rule_hash
    ),
    EXISTS (
        SELECT FROM durable_schedule WHERE job_name = ANY(%(names)s::text[]) AND broken <> ''
    ),
    (
        SELECT extract(EPOCH FROM min(head.due) - statement_timestamp() - %(offset)s::interval)::float8
        FROM (
            (
                SELECT next_run_at AS due
                FROM durable_schedule
                WHERE next_run_at IS NOT NULL AND broken = '' AND job_name = ANY(%(names)s::text[])
                ORDER BY next_run_at
                LIMIT 1
            )
            UNION ALL
            (
                SELECT next_run_at - LEAST(jitter, interval '36500 days')
                FROM durable_schedule
                WHERE
                    broken = '' AND job_name = ANY(%(names)s::text[]) AND jitter IS NOT NULL
                    AND next_run_at <= statement_timestamp() + %(offset)s::interval + (
-- include: widest_jitter
                    )
                    AND next_run_at - LEAST(jitter, interval '36500 days')
                    <= statement_timestamp() + %(offset)s::interval
                LIMIT 1
            )
        ) AS head
    )
