-- Note on the steps of a job which compensations of its undo job have succeeded.
UPDATE durable_step AS s SET compensated = TRUE
FROM durable_step AS c
WHERE
    s.job_id = %(job)s AND s.kind = 'step' AND s.undo_name IS NOT NULL AND NOT s.compensated
    AND c.job_id = %(undo)s AND c.kind = 'compensation' AND c.name = s.name
    AND c.status = 'succeeded'
