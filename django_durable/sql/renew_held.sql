-- Renew the lease of one claim, whoever has locked its row.
UPDATE durable_job SET
    lease_until = statement_timestamp() + %(offset)s::interval + %(lease)s::interval
WHERE id = %(id)s AND epoch = %(epoch)s AND status = 'RUNNING'
