-- Drop starts that no window holds any more.
DELETE FROM durable_start
WHERE id = ANY(ARRAY(
    SELECT id
    FROM durable_start
    WHERE expires_at < statement_timestamp() + %(offset)s::interval
    ORDER BY expires_at
    LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED
))
RETURNING id
