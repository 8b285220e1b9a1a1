"""Examples of workflows, each run by `.venv/bin/python -m examples NAME`."""
