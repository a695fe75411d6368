"""Stacks of live ranks and dumps of torch's flight recorder, and what a hang looks like in them."""
