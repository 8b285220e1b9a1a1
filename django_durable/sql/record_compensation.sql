-- Record a compensation, and note on the step that it is taken back, in one statement: no crash leaves
-- one without the other.
WITH RECURSIVE
-- include: insert_one
,
done AS (SELECT mine.id AS job_id, %(name)s::text AS name FROM mine INNER JOIN written ON TRUE),
-- include: mark_taken_back
SELECT
    mine.cancel_requested, written.wake_at, statement_timestamp() + %(offset)s::interval,
    COALESCE(written.is_new, FALSE)
FROM mine
LEFT JOIN written ON TRUE
