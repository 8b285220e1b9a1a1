-- Record one checkpoint as `record_checkpoints` does several: it is what most runs want, and half
-- the work.
WITH
-- include: insert_one
SELECT
    mine.cancel_requested, written.wake_at, statement_timestamp() + %(offset)s::interval,
    COALESCE(written.is_new, FALSE)
FROM mine
LEFT JOIN written ON TRUE
