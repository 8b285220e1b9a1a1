-- Say why a schedule cannot fire and, unless %(retry)s is NULL, when it is tried again.
UPDATE durable_schedule SET
    broken = %(why)s,
    retry_at = statement_timestamp() + %(offset)s::interval + %(retry)s::interval
WHERE id = %(id)s
