"""Finds the root cause of a failure in the text of logs: read, decide, word."""
