-- Name those of the locked roots whose trees may go: all other members are locked, as their number
-- says, none lives, and none is kept for a live job that has awaited it. A statement of its own,
-- whose snapshot is younger than the locks.
SELECT j.id
FROM unnest(%(roots)s::uuid[], %(locked)s::bigint[]) AS j (id, locked)
CROSS JOIN LATERAL (
    SELECT count(*) AS members, count(m.finished_at) AS ended
    FROM durable_job AS m
    WHERE m.root_id = j.id AND m.parent_id IS NOT NULL
) AS tree
WHERE tree.members = j.locked AND tree.ended = j.locked AND NOT durable_is_held(j.id)
