SELECT set_config('lock_timeout', %(milliseconds)s, TRUE)
