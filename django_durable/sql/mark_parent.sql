-- Make the end of a root look for its tree.
UPDATE durable_job SET awaited = TRUE
WHERE id = %(parent)s AND epoch = %(epoch)s AND status = 'RUNNING' AND NOT awaited
