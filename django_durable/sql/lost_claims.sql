status = 'RUNNING' AND due_at IS NULL
AND CASE
    WHEN %(claimers)s::uuid[] IS NULL
        THEN lease_until < statement_timestamp() + %(offset)s::interval
    ELSE claimer = ANY(%(claimers)s::uuid[])
END
