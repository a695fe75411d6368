"""From the text of logs to the root cause of a failure: read, decide, word."""
