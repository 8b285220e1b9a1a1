-- Lock schedules that are due; what another worker fires is left to it. Half of them have been due
-- the longest, half the shortest: those that are days behind keep no other from its time.
WITH oldest AS (
    SELECT id, octet_length(args) + octet_length(kwargs) AS size
    FROM durable_schedule
    WHERE
-- include: schedule_fires
    ORDER BY next_run_at, id
    LIMIT (%(limit)s + 1) / 2
    FOR NO KEY UPDATE SKIP LOCKED
),
newest AS (
    SELECT id, octet_length(args) + octet_length(kwargs) AS size
    FROM durable_schedule
    WHERE
-- include: schedule_fires
    ORDER BY next_run_at DESC, id DESC
    LIMIT %(limit)s / 2
    FOR NO KEY UPDATE SKIP LOCKED
)
SELECT id, size FROM oldest
UNION
SELECT id, size FROM newest
