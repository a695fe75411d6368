"""Reads lines, tracebacks, exits of ranks and matches of signatures from the text of logs."""
