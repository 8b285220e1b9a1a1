SELECT pg_advisory_xact_lock(%(namespace)s, 0)
