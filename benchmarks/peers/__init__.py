"""Other queues on PostgreSQL, measured beside: the same jobs, server and durability.

Each has an environment of its own, made of `requirements-NAME.txt`, and a program `NAME_peer.py`
that only that environment runs.
"""
