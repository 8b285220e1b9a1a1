-- Name those of the roots to whose trees rows of other tables point.
SELECT DISTINCT COALESCE(m.root_id, m.id)
FROM durable_job AS m
WHERE
    (
        m.id = ANY(%(roots)s::uuid[])
        OR (m.root_id = ANY(%(roots)s::uuid[]) AND m.parent_id IS NOT NULL)
    )
    AND (FALSE /* is pointed to */)
