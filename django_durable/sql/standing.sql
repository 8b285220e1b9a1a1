-- Tell how the listed jobs stand, to judge a write that found no row.
SELECT
    j.id, j.epoch, j.status, j.cancel_requested_at IS NOT NULL,
    EXISTS (
        SELECT FROM durable_attempt AS a
        WHERE a.job_id = j.id AND a.number = j.attempt AND a.outcome = 'lost'
    )
FROM durable_job AS j
WHERE j.id = ANY(%(ids)s::uuid[])
