-- Take the sweepers' lock, or tell that another sweeper has it.
SELECT pg_try_advisory_xact_lock(%(namespace)s, 0)
