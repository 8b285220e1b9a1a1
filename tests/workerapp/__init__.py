"""An app of job types that the suite's workers run in processes of their own."""
