-- What becomes of the doomed jobs: READY again, DEAD with a dead letter, or CANCELLED.
verdict AS MATERIALIZED (
    SELECT
        doomed.*,
        CASE
            WHEN %(cancel)s AND doomed.cancel_requested_at IS NULL THEN %(cancel_reason)s
            ELSE doomed.cancel_reason
        END AS reason,
        CASE
            WHEN doomed.cancel_requested_at IS NOT NULL OR %(cancel)s THEN 'CANCELLED'
            WHEN NOT %(retryable)s OR doomed.attempt >= doomed.max_attempts THEN 'DEAD'
            ELSE 'READY'
        END AS becomes,
        statement_timestamp() + %(offset)s::interval AS now
    FROM doomed
),
changed AS (
    UPDATE durable_job AS j SET
        status = v.becomes,
        run_after = CASE
            WHEN v.becomes = 'READY' THEN COALESCE(v.now + %(delay)s::interval, j.run_after)
            ELSE j.run_after
        END,
        due_at = CASE
            WHEN v.becomes = 'READY' THEN COALESCE(v.now + %(delay)s::interval, j.run_after)
        END,
        finished_at = CASE WHEN v.becomes <> 'READY' THEN v.now END,
        kept_until = CASE
            WHEN v.becomes = 'READY' OR j.parent_id IS NOT NULL THEN NULL
            WHEN v.becomes = 'DEAD' THEN v.now +
-- include: keep_dead
            ELSE v.now +
-- include: keep_completed
        END,
        keep_for = CASE
            WHEN v.becomes = 'READY' OR j.parent_id IS NOT NULL THEN NULL
            WHEN v.becomes = 'DEAD' THEN
-- include: keep_dead
            ELSE
-- include: keep_completed
        END,
        cancel_reason = v.reason,
        lease_until = NULL, claimer = NULL, key_held = FALSE, resumed = FALSE,
        -- The trigger names the one of what is not resumed.
        lane = 0
    FROM verdict AS v
    WHERE j.id = ANY(ARRAY[v.id])
    RETURNING j.id
),
attempts AS (
    INSERT INTO durable_attempt (
        job_id, number, worker, started_at, finished_at, outcome, error_class, message, traceback
    )
    SELECT
        v.id, v.attempt, COALESCE(v.worker, ''), v.claimed_at, v.now,
        CASE WHEN v.becomes = 'CANCELLED' AND %(outcome)s = 'failed' THEN 'cancelled' ELSE %(outcome)s END,
        %(error_class)s, v.message, %(traceback)s
    FROM verdict AS v
    ON CONFLICT (job_id, number) DO NOTHING
),
letters AS (
    INSERT INTO durable_deadletter (
        job_id, reason, error_class, message, traceback, died_at, attempt_count, replayed_by,
        hook_due_at
    )
    SELECT
        v.id, %(reason)s, %(error_class)s, v.message,
        %(traceback)s, v.now, v.attempt, '', v.now
    FROM verdict AS v
    WHERE v.becomes = 'DEAD'
    -- Somebody may have made a dead job READY by hand: it can die once more, and be replayed.
    ON CONFLICT (job_id) DO UPDATE SET
        reason = excluded.reason, error_class = excluded.error_class, message = excluded.message,
        traceback = excluded.traceback, died_at = excluded.died_at,
        attempt_count = excluded.attempt_count, hook_due_at = excluded.hook_due_at,
        replayed_as_id = NULL, replayed_at = NULL, replayed_by = ''
)
SELECT
    v.id, v.epoch, v.name, v.queue_name, v.attempt, v.becomes, v.worker, v.claimed_at,
    -- No moment that Python can't hold, whatever somebody has written: a rescue would never end.
    LEAST(GREATEST(v.run_after, '0001-01-02'::timestamptz), v.now) AS run_after, v.now, v.reason
FROM verdict AS v
