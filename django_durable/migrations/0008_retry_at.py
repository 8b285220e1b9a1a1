"""A schedule that a passing error keeps from firing is tried again."""

from django.db import migrations, models

import django_durable.fields


class Migration(migrations.Migration):
    """Keep when that is; NULL for all that nothing but an edit mends."""

    dependencies = [("durable", "0007_unplanned")]

    operations = [
        migrations.AddField(
            model_name="schedule",
            name="retry_at",
            field=django_durable.fields.MomentField(editable=False, null=True),
        ),
        migrations.AddIndex(
            model_name="schedule",
            index=models.Index(
                condition=models.Q(("retry_at__isnull", False)),
                fields=["retry_at"],
                name="durable_schedule_retry_idx",
            ),
        ),
    ]
