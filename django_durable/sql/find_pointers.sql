-- Name the columns of other tables that may point to jobs, or to what goes with a job, and then let
-- none of these be deleted: which table has them, to which table and to which of its columns they point.
SELECT c.conrelid::regclass::text, quote_ident(a.attname), c.confrelid::regclass::text, quote_ident(t.attname)
FROM pg_constraint AS c
INNER JOIN pg_attribute AS a ON c.conrelid = a.attrelid AND c.conkey[1] = a.attnum
INNER JOIN pg_attribute AS t ON c.confrelid = t.attrelid AND c.confkey[1] = t.attnum
WHERE
    c.contype = 'f' AND c.conparentid = 0
    AND c.confrelid = ANY(ARRAY[
        'durable_job', 'durable_deadletter', 'durable_attempt', 'durable_step', 'durable_signal'
    ]::regclass[])
    -- Not those for which the database itself deletes or changes what points.
    AND c.confdeltype IN ('a', 'r')
    AND c.conrelid <> ALL(%(own)s::text[]::regclass[])
    AND has_table_privilege(c.conrelid, 'SELECT')
ORDER BY c.conrelid, a.attname
