j.status = 'RUNNING' AND j.due_at IS NULL
AND (
    (j.id, j.epoch) IN (SELECT * FROM unnest(%(ids)s::uuid[], %(epochs)s::bigint[]))
    OR (
        j.claimer = %(claimer)s::uuid
        AND (j.id, j.epoch) NOT IN (
            SELECT * FROM unnest(%(held_ids)s::uuid[], %(held_epochs)s::bigint[])
        )
    )
)
