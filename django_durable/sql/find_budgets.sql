-- Tell whether keyed jobs wait at all, and which queues have a limit.
SELECT
    EXISTS (SELECT FROM durable_job WHERE due_at IS NOT NULL AND key_hash IS NOT NULL) AS keyed,
    (SELECT array_agg(name) FROM durable_queue WHERE max_running IS NOT NULL) AS limited,
    (SELECT array_agg(max_running) FROM durable_queue WHERE max_running IS NOT NULL) AS limits
