"""The trigger that files each job into its lane."""

from django.db import migrations

# Chr(31), the unit separator, keeps ("a", "bc") and ("ab", "c") apart.
CREATE = """
CREATE FUNCTION durable_job_lane() RETURNS trigger LANGUAGE plpgsql AS $body$
BEGIN
    NEW.lane := hashtextextended(
        NEW.queue_name || chr(31) || NEW.name || chr(31) || COALESCE(NEW.requires, '')
        || chr(31) || NEW.priority::text,
        0
    );
    NEW.key_hash := hashtextextended(NEW.concurrency_key, 0);
    RETURN NEW;
END
$body$;
CREATE TRIGGER durable_job_lane
    BEFORE INSERT OR UPDATE OF queue_name, name, requires, priority, concurrency_key, lane, key_hash
    ON durable_job
    FOR EACH ROW
    EXECUTE FUNCTION durable_job_lane();
"""

DROP = """
DROP TRIGGER durable_job_lane ON durable_job;
DROP FUNCTION durable_job_lane();
"""


class Migration(migrations.Migration):
    """Set `lane` and `key_hash` for whoever writes a job: the package, the ORM or psql.

    Claims and completions touch none of the named columns, so they never come here.
    """

    dependencies = [("durable", "0002_storage")]

    operations = [migrations.RunSQL(CREATE, DROP, elidable=False)]
