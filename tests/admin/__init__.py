"""The admin's pages, through Django's test client."""
