SELECT statement_timestamp() + %(offset)s::interval
