-- Claim the listed jobs, whose budgets are locked and counted.
WITH picked AS MATERIALIZED (
    SELECT * FROM unnest(
        %(ids)s::uuid[], %(priorities)s::int[], %(dues)s::timestamptz[], %(lanes)s::bigint[],
        %(keys)s::bigint[]
    ) AS listed (id, priority, due_at, lane, key_hash)
),
-- include: take
