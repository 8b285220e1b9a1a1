DELETE FROM durable_worker
WHERE heartbeat_at < statement_timestamp() + %(offset)s::interval - %(after)s::interval
RETURNING incarnation
