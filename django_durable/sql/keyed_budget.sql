    SELECT
        judged.most, LEAST(judged.most - judged.held, pace.room) AS room,
        COALESCE(pace.room < 1, FALSE) AS is_paced, pace.opens_in
    FROM (
        SELECT
            CASE
                WHEN
                    (%(queues)s::text[] IS NULL OR pair.queue_name = ANY(%(queues)s::text[]))
                    AND pair.queue_name <> ALL(%(excluded_queues)s::text[])
                    AND (pair.requires IS NULL OR pair.requires = ANY(%(capabilities)s::text[]))
                    AND NOT EXISTS (
                        SELECT FROM durable_queue AS q
                        WHERE
                            q.name = pair.queue_name
                            AND (
                                q.paused
                                -- A limit that is so new that the claim does not count it yet.
                                OR (
                                    (q.max_running IS NOT NULL OR q.rate_limit IS NOT NULL)
                                    AND q.name <> ALL(%(limited)s::text[])
                                )
                            )
                    )
                    THEN (%(limits)s::jsonb ->> pair.name)::int
            END AS most,
            (
                SELECT count(*)::int FROM durable_job AS h
                WHERE h.key_held AND h.key_hash = pair.key_hash
            ) AS held
    ) AS judged
    -- How many may start by the rates of the queue and under the key; none holds what is resumed.
    LEFT JOIN LATERAL (
        SELECT
            CASE
                WHEN pair.queue_name = ANY(%(spent)s::text[]) THEN 0
                ELSE rate.most - COALESCE(log.used, 0)
            END AS room,
            log.opens_in
        FROM (
            SELECT
                'key:' || pair.key_hash AS budget,
                (%(rates)s::jsonb -> pair.name ->> 0)::bigint AS most,
                (%(rates)s::jsonb -> pair.name ->> 1)::int AS seconds
        ) AS rate
        LEFT JOIN LATERAL (
-- include: starts
        ) AS log ON rate.most IS NOT NULL
    ) AS pace
        ON
            NOT pair.resumed AND judged.most > judged.held
            AND (%(rates)s::jsonb ? pair.name OR pair.queue_name = ANY(%(spent)s::text[]))
