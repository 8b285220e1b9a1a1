    -- A pending checkpoint is completed; a final one is never changed.
    ON CONFLICT (job_id, kind, name) DO UPDATE SET
        status = excluded.status, value = excluded.value, error_class = excluded.error_class,
        message = excluded.message, finished_at = excluded.finished_at,
        -- A wait that is written again, since the answer was lost, ends when it was to end.
        wake_at = CASE
            WHEN excluded.status = 'pending' AND excluded.tries = s.tries
                THEN COALESCE(s.wake_at, excluded.wake_at)
            ELSE excluded.wake_at
        END,
        tries = excluded.tries, undo_name = excluded.undo_name, undo_call = excluded.undo_call
    WHERE s.status = 'pending'
