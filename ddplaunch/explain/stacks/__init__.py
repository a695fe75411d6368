"""Stacks of live ranks, and how hangs show in them."""
