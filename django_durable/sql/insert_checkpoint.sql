    -- What one row of a checkpoint is made of, in the order of what is selected for it.
    INSERT INTO durable_step AS s (
        job_id, kind, name, ordinal, status, value, error_class, message, started_at, finished_at,
        wake_at, tries, child_id, undo_name, undo_call
    )
