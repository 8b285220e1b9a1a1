"""A schedule that has lost its next run is planned anew."""

from django.db import migrations

# As in 0003, but for what stands at %s.
FUNCTION = """
CREATE OR REPLACE FUNCTION durable_schedule_rule() RETURNS trigger LANGUAGE plpgsql AS $body$
BEGIN
    NEW.rule_hash := hash_record_extended(
        ROW(
            NEW.job_name, NEW.cron, NEW.every, NEW.timezone, NEW.starts_at, NEW.until,
            NEW.catch_up, NEW.overlap, NEW.jitter, NEW.args, NEW.kwargs
        ),
        0
    );%s
    RETURN NEW;
END
$body$
"""
NOTICE = """
    IF TG_OP = 'UPDATE' AND NEW.next_run_at IS NULL AND OLD.next_run_at IS NOT NULL
        AND NEW.rule_seen <> 0
    THEN
        NEW.rule_seen := ~NEW.rule_hash;
    END IF;"""


class Migration(migrations.Migration):
    """Let whoever takes a next run away, by whatever way, be noticed as an edit of the rule is.

    The scheduler's own statements are noticed too, once: a schedule that has come to its end is
    planned once more, and has no next run again.
    """

    dependencies = [("durable", "0006_events")]

    operations = [migrations.RunSQL(FUNCTION % NOTICE, FUNCTION % "", elidable=False)]
