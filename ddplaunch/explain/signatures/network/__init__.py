"""Signatures of the network, one family per file."""
