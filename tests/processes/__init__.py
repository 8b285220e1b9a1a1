"""Tests of real worker processes: real signals, real kills, a real server."""
