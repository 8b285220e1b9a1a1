    SELECT
        CASE
            WHEN
                (%(queues)s::text[] IS NULL OR pair.queue_name = ANY(%(queues)s::text[]))
                AND pair.queue_name <> ALL(%(excluded_queues)s::text[])
                AND (pair.requires IS NULL OR pair.requires = ANY(%(capabilities)s::text[]))
                AND NOT EXISTS (
                    SELECT FROM durable_queue AS q WHERE q.name = pair.queue_name AND q.paused
                )
                THEN (%(limits)s::jsonb ->> pair.name)::int
        END AS most,
        (
            SELECT count(*)::int FROM durable_job AS h
            WHERE h.key_held AND h.key_hash = pair.key_hash
        ) AS held
