"""Commands for runs that train, one file each."""
