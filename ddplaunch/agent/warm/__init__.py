"""Warm starts: ranks are forked from one process that has already imported torch."""
