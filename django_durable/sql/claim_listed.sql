-- Claim the listed jobs, whose budgets are locked and counted.
WITH picked AS MATERIALIZED (
    SELECT * FROM unnest(
        %(ids)s::uuid[], %(priorities)s::int[], %(dues)s::timestamptz[]
    ) AS listed (id, priority, due_at)
),
-- include: take
