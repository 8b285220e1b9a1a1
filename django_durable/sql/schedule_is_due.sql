-- A schedule of these job types is due. A rule that has changed is planned first.
job_name = ANY(%(names)s::text[]) AND rule_seen = rule_hash
AND next_run_at <= statement_timestamp() + %(offset)s::interval + (
-- include: widest_jitter
)
AND
-- include: schedule_due
<= statement_timestamp() + %(offset)s::interval
