-- The events with one more, of this moment and of the worker that runs the job, and since when it
-- does; of many the latest hundred stay.
CASE
    WHEN jsonb_array_length(j.events) >= 100 THEN j.events - 0
    ELSE COALESCE(j.events, '[]'::jsonb)
END || jsonb_build_array(
    jsonb_strip_nulls(jsonb_build_object(
        'at', statement_timestamp() + %(offset)s::interval,
        'worker', CASE WHEN j.status = 'RUNNING' THEN j.worker END,
        'claimed_at', CASE WHEN j.status = 'RUNNING' THEN j.claimed_at END
    ))
    || %(event)s::jsonb
)
