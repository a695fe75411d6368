"""Runs of this host: stop them, end orphans, ask ranks for their stacks."""
