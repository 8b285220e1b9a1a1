-- Give members that settle_trees.sql has passed by, since somebody held them, the time of their
-- roots: of these roots, and of those whose time ends in between. What is held now, too, is left.
WITH late AS MATERIALIZED (
    SELECT m.id, r.kept_until
    FROM durable_job AS r
    INNER JOIN durable_job AS m ON m.root_id = ANY(ARRAY[r.id])
    WHERE
        r.id = ANY(%(roots)s::uuid[] || ARRAY(
            SELECT id
            FROM durable_job
            WHERE
                status IN ('SUCCESSFUL', 'DEAD', 'CANCELLED') AND due_at IS NULL
                AND parent_id IS NULL AND keep_for IS NOT NULL
                AND kept_until > %(after)s::timestamptz AND kept_until <= %(until)s::timestamptz
        ))
        AND r.kept_until IS NOT NULL
        AND m.parent_id IS NOT NULL AND m.kept_until IS NULL AND m.finished_at IS NOT NULL
    FOR NO KEY UPDATE OF m SKIP LOCKED
)
UPDATE durable_job AS m SET kept_until = late.kept_until
FROM late
WHERE m.id = ANY(ARRAY[late.id])
