"""Commands before the first launch: files to begin with, lines of other launchers, what a bug report needs."""
