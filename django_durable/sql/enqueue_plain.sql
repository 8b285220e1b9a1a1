-- Insert one job that has nothing but its arguments, as most have: the defaults of the columns do the
-- rest, and there is less to read and to plan. It may run from the moment it is enqueued on.
INSERT INTO durable_job (id, root_id, name, queue_name, priority, args, kwargs, max_attempts)
VALUES (
    %(id)s, %(id)s, %(name)s, %(queue_name)s, %(priority)s, %(args)s, %(kwargs)s, %(max_attempts)s
)
RETURNING enqueued_at
