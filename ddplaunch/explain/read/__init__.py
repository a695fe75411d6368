"""From the text of logs to lines, tracebacks, exits of ranks and matches of signatures."""
