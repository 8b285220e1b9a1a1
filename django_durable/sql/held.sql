-- Is the job of a tree that is kept for a live job that has awaited one of it? (Migration 0004.)
durable_is_held(COALESCE(j.root_id, j.id))
