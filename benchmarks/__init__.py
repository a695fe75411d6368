"""Measurements of the commands that people wait for; no test depends on them."""
