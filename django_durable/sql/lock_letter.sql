-- Lock the job of a dead letter, as its deletion does first; it stands for the letter too. With it the
-- job that it is to undo, whose own replay goes by what has not been taken back.
SELECT j.id, j.id = l.job_id AS dead
FROM durable_deadletter AS l
INNER JOIN durable_job AS d ON l.job_id = d.id
INNER JOIN durable_job AS j ON j.id IN (d.id, (d.metadata ->> 'undo')::uuid)
WHERE l.id = %(letter)s
ORDER BY j.id DESC
FOR NO KEY UPDATE OF j
