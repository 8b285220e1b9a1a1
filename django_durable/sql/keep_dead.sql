-- How long a dead job of this type is kept; NULL is for ever.
CASE
    WHEN %(keep_dead)s::jsonb ? j.name THEN (%(keep_dead)s::jsonb ->> j.name)::interval
    ELSE %(default_keep_dead)s::interval
END
