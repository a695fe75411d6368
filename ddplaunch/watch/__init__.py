"""Observes runs while they train: samples, step rates and stragglers, and shows them."""
