-- Renew the leases of the listed claims. A row that is being written is left for the next time.
WITH mine AS MATERIALIZED (
    SELECT j.id
    FROM unnest(%(ids)s::uuid[], %(epochs)s::bigint[]) AS c (id, epoch)
    INNER JOIN durable_job AS j ON j.id = ANY(ARRAY[c.id])
    WHERE j.epoch = c.epoch AND j.status = 'RUNNING'
    FOR NO KEY UPDATE OF j SKIP LOCKED
)
UPDATE durable_job AS j SET
    lease_until = statement_timestamp() + %(offset)s::interval + %(lease)s::interval
FROM mine
WHERE j.id = ANY(ARRAY[mine.id])
RETURNING j.id, j.cancel_requested_at IS NOT NULL
