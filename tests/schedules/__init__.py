"""Tests of schedules: declaring them, planning them, firing them."""
