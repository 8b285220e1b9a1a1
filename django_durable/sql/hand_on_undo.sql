-- Leave it to a new job to take back what was copied to it.
UPDATE durable_step SET undo_name = NULL, undo_call = NULL
WHERE
    job_id = %(old)s AND undo_name IS NOT NULL AND status = 'succeeded' AND NOT compensated
    AND (
        %(before)s::bigint IS NULL OR (ordinal, id) < (
            SELECT named.ordinal, named.id FROM durable_step AS named
            WHERE named.id = %(before)s::bigint
        )
    )
