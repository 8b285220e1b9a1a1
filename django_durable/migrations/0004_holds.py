"""The function that tells what is kept for live jobs."""

from django.db import migrations


class Migration(migrations.Migration):
    """Ask by a function of a small cost: every read of jobs asks, and almost no row comes to it.

    A subquery in its place costs as much at run time, but the planner takes it for something that
    every row pays, thinks each list of jobs expensive, and compiles it.
    """

    dependencies = [("durable", "0003_lanes")]

    operations = [
        migrations.RunSQL(
            """
            CREATE FUNCTION durable_is_held(root uuid) RETURNS boolean
            LANGUAGE plpgsql STABLE PARALLEL SAFE COST 10 AS $body$
            BEGIN
                RETURN EXISTS (
                    SELECT
                    FROM durable_hold AS h
                    INNER JOIN durable_job AS w ON h.waiter_id = w.id
                    WHERE h.awaited_id = root AND w.finished_at IS NULL
                );
            END
            $body$
            """,
            "DROP FUNCTION durable_is_held(uuid)",
            elidable=False,
        )
    ]
