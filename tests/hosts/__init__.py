"""Hosts that are network namespaces of this machine; refuses to touch the machine's own network."""
