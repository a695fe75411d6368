"""Values to what a terminal, a file or another program is shown."""
