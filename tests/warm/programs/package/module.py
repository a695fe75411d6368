"""Prints what `-m` makes of it, and fails if asked."""

import sys

print(__name__, __spec__ and __spec__.name, __package__, __file__, sys.argv, sys.path[0])
if sys.argv[1:] == ["fail"]:
    raise ValueError("in a module")
if sys.argv[1:] == ["exit"]:
    sys.exit(7)
