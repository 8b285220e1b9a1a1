"""Fixtures of the tests of workflows: those of the contract's tests, and those of real workers."""

from tests.contract.conftest import _forget_job_types, advance, committed

__all__ = ["_forget_job_types", "advance", "committed"]
