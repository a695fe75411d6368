"""Checks: pure functions from facts and launch to findings, by subject."""
