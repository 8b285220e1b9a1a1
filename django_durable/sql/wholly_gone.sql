-- Does the whole tree of the locked root read as gone? Then nobody can make one live or await it
-- any more. A statement of its own, whose snapshot is younger than the lock.
SELECT
    NOT durable_is_held(%(root)s::uuid)
    AND NOT EXISTS (
        SELECT
        FROM durable_job AS m
        WHERE
            m.root_id = %(root)s::uuid AND m.parent_id IS NOT NULL
            AND (
                m.finished_at IS NULL OR m.kept_until IS NULL
                OR m.kept_until > statement_timestamp() + %(offset)s::interval
            )
    )
