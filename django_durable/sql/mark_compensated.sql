-- Note on steps which compensations of an undo job have succeeded.
WITH RECURSIVE done AS (
    SELECT job_id, name
    FROM durable_step
    WHERE job_id = %(undo)s AND kind = 'compensation' AND status = 'succeeded'
),
-- include: mark_taken_back
SELECT
