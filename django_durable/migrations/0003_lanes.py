"""The triggers that derive a column from others."""

from django.db import migrations

# Chr(31), the unit separator, keeps ("a", "bc") and ("ab", "c") apart.
CREATE = """
CREATE FUNCTION durable_job_lane() RETURNS trigger LANGUAGE plpgsql AS $body$
BEGIN
    NEW.lane := hashtextextended(
        NEW.queue_name || chr(31) || NEW.name || chr(31) || COALESCE(NEW.requires, '')
        || chr(31) || NEW.priority::text || CASE WHEN NEW.resumed THEN chr(31) ELSE '' END,
        0
    );
    NEW.key_hash := hashtextextended(NEW.concurrency_key, 0);
    IF TG_OP = 'INSERT' AND NEW.options ? 'start_within' THEN
        NEW.start_by := GREATEST(NEW.run_after, NEW.enqueued_at)
            + make_interval(secs => (NEW.options ->> 'start_within')::float8);
    END IF;
    RETURN NEW;
END
$body$;
CREATE TRIGGER durable_job_lane
    BEFORE INSERT OR UPDATE OF queue_name, name, requires, priority, concurrency_key, lane, key_hash
    ON durable_job
    FOR EACH ROW
    EXECUTE FUNCTION durable_job_lane();

CREATE FUNCTION durable_schedule_rule() RETURNS trigger LANGUAGE plpgsql AS $body$
BEGIN
    NEW.rule_hash := hash_record_extended(
        ROW(
            NEW.job_name, NEW.cron, NEW.every, NEW.timezone, NEW.starts_at, NEW.until,
            NEW.catch_up, NEW.overlap, NEW.jitter, NEW.args, NEW.kwargs
        ),
        0
    );
    RETURN NEW;
END
$body$;
CREATE TRIGGER durable_schedule_rule
    BEFORE INSERT OR UPDATE ON durable_schedule
    FOR EACH ROW
    EXECUTE FUNCTION durable_schedule_rule();
"""

DROP = """
DROP TRIGGER durable_schedule_rule ON durable_schedule;
DROP FUNCTION durable_schedule_rule();
DROP TRIGGER durable_job_lane ON durable_job;
DROP FUNCTION durable_job_lane();
"""


class Migration(migrations.Migration):
    """Set what is derived for whoever writes a row: the package, the ORM or psql.

    Claims and completions touch none of the named columns of a job, so they never come here. Columns
    that PostgreSQL generates would be judged anew in every update, and Django 6.1 asks the database
    for its version before each command when a model has one.
    """

    dependencies = [("durable", "0002_storage")]

    operations = [migrations.RunSQL(CREATE, DROP, elidable=False)]
