"""Log text to lines, tracebacks, launcher trailers and matches."""
