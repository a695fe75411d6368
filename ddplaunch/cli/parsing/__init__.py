"""The command line: what commands and options there are, how their words are read, shown and completed."""
