"""One file per command, shared options, one error boundary."""
