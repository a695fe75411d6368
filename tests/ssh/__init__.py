"""Hosts with a real sshd each, on one machine."""
