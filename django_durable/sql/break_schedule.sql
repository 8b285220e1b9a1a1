UPDATE durable_schedule SET broken = %(why)s WHERE id = %(id)s
