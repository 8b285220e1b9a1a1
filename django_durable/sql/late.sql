start_by IS NOT NULL AND due_at IS NOT NULL AND started_at IS NULL
AND start_by <= statement_timestamp() + %(offset)s::interval
