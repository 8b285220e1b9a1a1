-- Park the run, unless its claim is lost or its cancellation requested.
UPDATE durable_job AS j SET
    status = 'WAITING',
    due_at = %(wake_at)s::timestamptz,
    resumed = TRUE,
    -- The trigger names the one of what is resumed.
    lane = 0,
    waits_for = %(signal)s,
    lease_until = NULL, claimer = NULL,
    key_held = j.key_held AND %(hold_key)s,
    -- What a sleep or a signal waits for says its checkpoint.
    events = CASE WHEN %(event)s::jsonb IS NULL THEN j.events ELSE
-- include: log_event
    END
WHERE id = %(id)s AND epoch = %(epoch)s AND status = 'RUNNING' AND cancel_requested_at IS NULL
RETURNING id
