UPDATE durable_deadletter SET hook_due_at = NULL WHERE id = ANY(%(letters)s::bigint[])
