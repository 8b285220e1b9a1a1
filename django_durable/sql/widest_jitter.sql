-- What somebody has written past the rules, which allow this range, must not hide the others.
SELECT GREATEST(interval '0', LEAST(interval '36500 days', COALESCE(max(jitter), interval '0')))
FROM durable_schedule
WHERE jitter IS NOT NULL
