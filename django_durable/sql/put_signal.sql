-- Buffer a signal; the last write wins.
INSERT INTO durable_signal (job_id, name, payload, received_at)
VALUES (%(id)s, %(name)s, %(payload)s, statement_timestamp() + %(offset)s::interval)
ON CONFLICT (job_id, name) DO UPDATE SET
    payload = excluded.payload, received_at = excluded.received_at
