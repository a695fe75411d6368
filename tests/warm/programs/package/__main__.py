"""Prints what `-m PACKAGE` makes of it."""

import sys

from . import heavy  # noqa: TID252 - it is what is tried

print(__name__, __spec__ and __spec__.name, __package__, heavy.__name__, sys.argv)
