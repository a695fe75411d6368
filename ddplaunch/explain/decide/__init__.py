"""From matches to the root cause."""
