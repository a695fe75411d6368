"""The command line: which commands and options there are, and how they are parsed, shown and completed."""
