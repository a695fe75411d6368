"""Commands for what is left after a run, and for reports of bugs, one file each."""
