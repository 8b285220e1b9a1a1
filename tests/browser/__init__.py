"""What only a browser can show: the admin as people use it."""
