"""The command line: one file per command, shared options, one error boundary."""
