-- Lock the job of a dead letter, as its deletion does first; it stands for the letter too.
SELECT id
FROM durable_job
WHERE id = (SELECT job_id FROM durable_deadletter WHERE id = %(letter)s)
FOR NO KEY UPDATE
