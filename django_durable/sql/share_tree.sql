-- Take the tree's lock, shared with other births; a cancel of the tree takes it alone.
SELECT pg_advisory_xact_lock_shared(%(namespace)s, hashtext(%(root)s::text))
