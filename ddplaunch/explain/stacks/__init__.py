"""Stacks of live ranks, and what a hang looks like in them."""
