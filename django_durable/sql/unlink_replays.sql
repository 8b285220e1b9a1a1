UPDATE durable_deadletter SET replayed_as_id = NULL WHERE replayed_as_id = ANY(%(ids)s::uuid[])
