-- How long a completed or cancelled job of this type is kept; NULL is for ever.
CASE
    WHEN %(keep_completed)s::jsonb ? j.name THEN (%(keep_completed)s::jsonb ->> j.name)::interval
    ELSE %(default_keep_completed)s::interval
END
