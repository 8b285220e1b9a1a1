-- Lock the job of a run as `lock_run` does, or leave it to whoever holds it.
-- include: lock_run
SKIP LOCKED
