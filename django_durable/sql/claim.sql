-- Claim jobs that need no budget: one statement, one commit.
WITH picked AS MATERIALIZED (
-- include: peek
),
-- include: take
