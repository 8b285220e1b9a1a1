-- Take the locks of the trees alone: no child is being born there until this transaction ends.
SELECT pg_advisory_xact_lock(%(namespace)s, tree.hash)
FROM (
    SELECT DISTINCT hashtext(root::text) AS hash FROM unnest(%(roots)s::uuid[]) AS root ORDER BY 1
) AS tree
