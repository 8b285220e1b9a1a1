-- Claim as claim.sql does, but the oldest jobs before all others, whatever their priority: so that
-- they have a priority above the highest here, which is all that this one is for.
WITH heads AS MATERIALIZED (
-- include: heads
),
aged AS (
    SELECT heads.*, row_number() OVER (ORDER BY due_at, id) <= %(oldest)s AS is_oldest
    FROM heads
),
picked AS MATERIALIZED (
    SELECT
        id, CASE WHEN is_oldest THEN 101 ELSE priority END AS priority, due_at, lane, key_hash
    FROM aged
    ORDER BY 2 DESC, due_at, id
    LIMIT %(reach)s
),
-- include: take
