UPDATE durable_deadletter SET
    replayed_as_id = %(new)s,
    replayed_at = statement_timestamp() + %(offset)s::interval,
    replayed_by = %(by)s
WHERE id = %(letter)s
