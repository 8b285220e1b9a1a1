"""Storage settings of the table that every job passes through."""

from django.db import migrations


class Migration(migrations.Migration):
    """Leave room for updates in place, and vacuum by the number of dead rows, not by their share.

    Renewals and progress touch no indexed column; with room in the page they need no new index
    entries. A table that keeps weeks of finished jobs must not wait for a fifth of it to die
    before its claim index is cleaned.
    """

    dependencies = [("durable", "0001_initial")]

    operations = [
        migrations.RunSQL(
            """
            ALTER TABLE durable_job SET (
                fillfactor = 85,
                autovacuum_vacuum_scale_factor = 0,
                autovacuum_vacuum_threshold = 20000,
                autovacuum_analyze_scale_factor = 0.05
            )
            """,
            """
            ALTER TABLE durable_job RESET (
                fillfactor,
                autovacuum_vacuum_scale_factor,
                autovacuum_vacuum_threshold,
                autovacuum_analyze_scale_factor
            )
            """,
            elidable=False,
        )
    ]
