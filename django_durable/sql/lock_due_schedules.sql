-- Lock schedules that are due; what another worker fires is left to it. Half of them have been due
-- the longest, half the shortest: those that are days behind keep no other from its time. A few come
-- on top that are tried again after an error.
WITH oldest AS (
    SELECT id, octet_length(args) + octet_length(kwargs) AS size
    FROM durable_schedule
    WHERE
        broken = '' AND
-- include: schedule_is_due
    ORDER BY next_run_at, id
    LIMIT (%(limit)s + 1) / 2
    FOR NO KEY UPDATE SKIP LOCKED
),
newest AS (
    SELECT id, octet_length(args) + octet_length(kwargs) AS size
    FROM durable_schedule
    WHERE
        broken = '' AND
-- include: schedule_is_due
    ORDER BY next_run_at DESC, id DESC
    LIMIT %(limit)s / 2
    FOR NO KEY UPDATE SKIP LOCKED
),
again AS (
    SELECT id, octet_length(args) + octet_length(kwargs) AS size
    FROM durable_schedule
    WHERE
        retry_at <= statement_timestamp() + %(offset)s::interval AND
-- include: schedule_is_due
    ORDER BY retry_at, id
    LIMIT (%(limit)s + 9) / 10
    FOR NO KEY UPDATE SKIP LOCKED
)
SELECT id, size FROM oldest
UNION
SELECT id, size FROM newest
UNION
SELECT id, size FROM again
