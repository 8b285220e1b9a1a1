SELECT pg_try_advisory_xact_lock(%(namespace)s, 0)
