    -- A pending checkpoint is completed; a final one is never changed.
    ON CONFLICT (job_id, kind, name) DO UPDATE SET
        status = excluded.status, value = excluded.value, error_class = excluded.error_class,
        message = excluded.message, finished_at = excluded.finished_at,
        wake_at = excluded.wake_at, tries = excluded.tries, undo_name = excluded.undo_name,
        undo_call = excluded.undo_call
    WHERE s.status = 'pending'
