-- When the job of the next tick has to exist: its jitter before it. Whatever somebody has written
-- past the rules, this is a moment.
GREATEST(next_run_at, '0001-01-02 00:00+00'::timestamptz)
    - LEAST(GREATEST(COALESCE(jitter, interval '0'), interval '0'), interval '36500 days')
