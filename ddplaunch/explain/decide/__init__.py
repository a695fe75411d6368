"""Decides from the contents of logs which failure is the root cause, and on which rank."""
