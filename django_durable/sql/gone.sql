-- Does the record read as gone, swept or not?
COALESCE(j.kept_until <= statement_timestamp() + %(offset)s::interval, FALSE) AND NOT
-- include: held
