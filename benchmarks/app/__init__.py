"""A Django project with the job types that the benchmarks run."""
