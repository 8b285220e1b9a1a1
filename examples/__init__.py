"""Examples of workflows, each run by `python -m examples NAME`."""
