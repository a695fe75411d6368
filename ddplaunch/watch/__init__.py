"""Runs while they train: samples, step rates, stragglers, and how they are shown."""
