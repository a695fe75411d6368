"""Launches from Python programs and notebooks."""
