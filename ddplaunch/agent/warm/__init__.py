"""Warm starts: ranks that are forked from one process which has imported torch already."""
