"""The worker: a small supervisor, and child processes that run the jobs.

    supervisor   starts children, renews their leases, listens, stops everything (no user code)
      renewer    thread: leases and the worker's row
      listener   thread: notifications, handed on to the children
    child        runs jobs
      claimer    thread: claims what fits the free slots, rescues what others lost
      threads    one for each running plain function
      loop       thread: the event loop of all async functions
      recorder   thread: writes outcomes in batches
      announcer  thread: Django signals, `on_dead_letter` hooks
      main       thread: messages of the supervisor, timeouts

The supervisor knows a child's claims from a table in shared memory, so that it renews them while
the child is stuck in C code.
"""
