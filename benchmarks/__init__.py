"""The numbers that the documentation quotes, each with the command that makes it."""
