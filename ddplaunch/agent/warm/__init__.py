"""Ranks that are forked from one process that has torch already; refuses to decide whether a launch is warm."""
