"""Signatures of GPUs, one family per file."""
