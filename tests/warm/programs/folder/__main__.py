"""Prints what `python FOLDER` makes of it."""

import sys

print(__name__, __spec__, __package__, __file__, sys.argv, sys.path[0])
if sys.argv[1:] == ["fail"]:
    raise ValueError("in a folder")
