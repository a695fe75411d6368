"""The end of a run: finds which rank failed first and why, records it, and reports it."""
