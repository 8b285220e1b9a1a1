DELETE FROM durable_worker WHERE incarnation = %(incarnation)s
