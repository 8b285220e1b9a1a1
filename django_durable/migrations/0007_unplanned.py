"""A schedule that has lost its next run is planned anew."""

from importlib import import_module

from django.db import migrations

# As in 0003, which has the trigger; the hash is the same.
BEFORE = import_module("django_durable.migrations.0003_lanes").CREATE
FUNCTION = BEFORE[BEFORE.index("CREATE FUNCTION durable_schedule_rule") :].split("CREATE TRIGGER")[
    0
]
REPLACE = FUNCTION.replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION")
NOTICE = """
    IF TG_OP = 'UPDATE' AND NEW.next_run_at IS NULL AND OLD.next_run_at IS NOT NULL
        AND NEW.rule_seen <> 0
    THEN
        NEW.rule_seen := ~NEW.rule_hash;
    END IF;
    RETURN NEW;
"""


class Migration(migrations.Migration):
    """Let whoever takes a next run away, by whatever way, be noticed as an edit of the rule is.

    The scheduler's own statements are noticed too, once: a schedule that has come to its end is
    planned once more, and has no next run again.
    """

    dependencies = [("durable", "0006_events")]

    operations = [
        migrations.RunSQL(
            REPLACE.replace("    RETURN NEW;\n", NOTICE.lstrip("\n")), REPLACE, elidable=False
        )
    ]
