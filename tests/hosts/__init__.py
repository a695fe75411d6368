"""Hosts that are network namespaces of this machine."""
