"""What a job went through that no other row tells, and the way from a job to its forks."""

from django.db import migrations, models


class Migration(migrations.Migration):
    """Add a column that is NULL in every row, which rewrites nothing, and an index of few rows."""

    dependencies = [("durable", "0005_forked_from")]

    operations = [
        migrations.AddField("job", "events", models.JSONField(editable=False, null=True)),
        migrations.AddIndex(
            "job",
            models.Index(
                fields=["forked_from"],
                condition=models.Q(forked_from__isnull=False),
                name="durable_job_forked_from_idx",
            ),
        ),
    ]
