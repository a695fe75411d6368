"""Lines, scripts and files of other launchers, as ddplaunch says the same."""
