status = 'RUNNING' AND due_at IS NULL
AND CASE
    WHEN %(claimers)s::uuid[] IS NULL
        -- A server that has just started gives the workers time to renew what lapsed meanwhile.
        THEN lease_until < statement_timestamp() + %(offset)s::interval
            AND statement_timestamp() > pg_postmaster_start_time() + %(grace)s::interval
    ELSE claimer = ANY(%(claimers)s::uuid[])
END
