-- Is the job of a tree that is kept for a live job that has awaited one of it?
EXISTS (
    SELECT
    FROM durable_hold AS h
    INNER JOIN durable_job AS w ON h.waiter_id = w.id
    WHERE h.awaited_id = COALESCE(j.root_id, j.id) AND w.finished_at IS NULL
)
