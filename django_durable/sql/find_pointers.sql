-- Name the columns of other tables that may point to jobs, and then let none of these be deleted.
SELECT c.conrelid::regclass::text, quote_ident(a.attname)
FROM pg_constraint AS c
INNER JOIN pg_attribute AS a ON c.conrelid = a.attrelid AND c.conkey[1] = a.attnum
WHERE
    c.contype = 'f' AND c.confrelid = 'durable_job'::regclass AND c.conparentid = 0
    -- Not those for which the database itself deletes or changes what points.
    AND c.confdeltype IN ('a', 'r')
    AND c.conrelid <> ALL(%(own)s::text[]::regclass[])
    AND has_table_privilege(c.conrelid, 'SELECT')
ORDER BY c.conrelid, a.attname
