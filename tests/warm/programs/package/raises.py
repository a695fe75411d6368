"""Fails when it is imported."""

raise ImportError("on purpose")
