-- Take the tree's lock alone: no child of it is being born until this transaction ends.
SELECT pg_advisory_xact_lock(%(namespace)s, hashtext(%(root)s::text))
