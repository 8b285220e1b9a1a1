-- Lock the picked jobs that nobody else holds, in order, and make them this claimer's.
-- A row that changed after the pick is judged again, in its newest version, once it is locked: it
-- must still be in the lane and under the key that it was picked for.
locked AS MATERIALIZED (
    SELECT j.id, picked.due_at, j.resumed
    FROM durable_job AS j
    INNER JOIN picked ON j.id = ANY(ARRAY[picked.id])
    WHERE
        j.due_at <= statement_timestamp() + %(offset)s::interval
        AND j.status IN ('READY', 'WAITING')
        -- What has not started in time never does.
        AND (
            j.start_by IS NULL OR j.started_at IS NOT NULL
            OR j.start_by > statement_timestamp() + %(offset)s::interval
        )
        AND j.lane = picked.lane
        AND CASE
            WHEN picked.key_hash IS NULL THEN j.key_hash IS NULL OR j.key_held
            ELSE j.key_hash = picked.key_hash AND NOT j.key_held
        END
    ORDER BY picked.priority DESC, picked.due_at, picked.id
    LIMIT %(slots)s
    FOR NO KEY UPDATE OF j SKIP LOCKED
),
-- A wait ends with the claim that its deadline brought: what runs waits for nobody.
unwaited AS (
    DELETE FROM durable_await AS a
    USING locked
    WHERE locked.resumed AND a.waiter_id = locked.id
),
taken AS (
    UPDATE durable_job AS j SET
        status = 'RUNNING',
        due_at = NULL,
        waits_for = NULL,
        -- By chance, so that a claim that a crash of the server took back, since its commit was not
        -- waited for, never has the number of a later one.
        epoch = j.epoch + 1 + (random() * 1000000000)::bigint,
        attempt = j.attempt + CASE WHEN j.resumed THEN 0 ELSE 1 END,
        -- An operator may have lowered the maximum under a waiting retry; that must not break the claim.
        max_attempts = CASE
            WHEN NOT j.resumed AND j.max_attempts <= j.attempt THEN j.attempt + 1
            ELSE j.max_attempts
        END,
        claimed_at = statement_timestamp() + %(offset)s::interval,
        started_at = COALESCE(j.started_at, statement_timestamp() + %(offset)s::interval),
        lease_until = statement_timestamp() + %(offset)s::interval + %(lease)s::interval,
        worker = %(worker)s,
        claimer = %(claimer)s::uuid,
        key_held = j.concurrency_key IS NOT NULL
    FROM locked
    WHERE j.id = ANY(ARRAY[locked.id])
    RETURNING
        j.id, j.epoch, j.name, j.queue_name, j.priority, j.attempt, j.max_attempts, j.args, j.kwargs,
        j.options::text,
        -- No moment that Python can't hold, whatever somebody has written: no claim would succeed.
        LEAST(GREATEST(j.run_after, '0001-01-02'::timestamptz), '9999-12-30') AS run_after,
        GREATEST(locked.due_at, '0001-01-02'::timestamptz) AS due_at,
        j.claimed_at, j.rejections, j.resumed, j.parent_id, j.root_id, j.depth, j.delivery_id, j.concurrency_key, j.idempotency_key, j.requires,
        j.metadata::text, j.enqueued_at, j.started_at, j.lane, j.schedule_id, j.scheduled_for
)
-- A row comes back even where nothing was taken: how many were picked tells whether others hold some.
SELECT (SELECT count(*) FROM picked) AS picked, taken.*
FROM (VALUES (1)) AS always (one)
LEFT JOIN taken ON TRUE
