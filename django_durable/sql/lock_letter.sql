-- Lock the job of a dead letter, as its deletion does first; it stands for the letter too. With it the
-- job that it is to undo, whose own replay goes by what has not been taken back.
SELECT j.id, j.id = l.job_id AS dead
FROM durable_deadletter AS l
INNER JOIN durable_job AS d ON d.id = ANY(ARRAY[l.job_id])
INNER JOIN durable_job AS j ON j.id = ANY(ARRAY[d.id, (d.metadata ->> 'undo')::uuid])
WHERE l.id = %(letter)s
-- In a form for which no index is walked from end to end.
ORDER BY uuid_send(j.id) DESC
FOR NO KEY UPDATE OF j
