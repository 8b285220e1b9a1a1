"""The link from a fork to what it was made from."""

from django.db import migrations, models


class Migration(migrations.Migration):
    """Add a column that is NULL in every row, which rewrites nothing.

    No foreign key: what a fork was made from may be gone before it.
    """

    dependencies = [("durable", "0004_holds")]

    operations = [
        migrations.AddField(
            "job",
            "forked_from",
            models.UUIDField(blank=True, null=True, verbose_name="forked from"),
        )
    ]
